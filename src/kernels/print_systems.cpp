#include "kernels/print_systems.h"

#include "kernels/template.h"

namespace tower::compiler {
namespace {

// Elimination by columns with the pivot that each lane needs, as LAPACK has it: of pivots of one size the first is
// taken, and a column of zeros is passed over. Then substitution from the last row on.
//
// In the place of a pivot goes its inverse. Rows are exchanged as vectors where all lanes exchange the same, which is
// how it is where examples are alike, and lane by lane elsewhere.
constexpr const char* kSolver = R"(
define internal void @{name}(ptr %a) #0 {
start:
  br label %column
column:
  %k = phi i64 [ 0, %start ], [ %k1, %eliminated ]
  %found = phi {V} [ zeroinitializer, %start ], [ %found1, %eliminated ]
  %k1 = add i64 %k, 1
  %krow = mul i64 %k, {w}
  %kk = add i64 %krow, %k
  %diagonal = getelementptr {V}, ptr %a, i64 %kk
  %d = load {V}, ptr %diagonal, align 8
  %dsize = call {V} @llvm.fabs.{M}({V} %d)
  %k.s = insertelement {I} poison, i64 %k, i32 0
  %k.v = shufflevector {I} %k.s, {I} poison, {S} zeroinitializer
  br label %search
search:
  %i = phi i64 [ %k1, %column ], [ %i1, %searching ]
  %best = phi {V} [ %dsize, %column ], [ %best1, %searching ]
  %which = phi {I} [ %k.v, %column ], [ %which1, %searching ]
  %i.more = icmp slt i64 %i, {n}
  br i1 %i.more, label %searching, label %searched
searching:
  %irow = mul i64 %i, {w}
  %ik = add i64 %irow, %k
  %p.ik = getelementptr {V}, ptr %a, i64 %ik
  %v = load {V}, ptr %p.ik, align 8
  %vsize = call {V} @llvm.fabs.{M}({V} %v)
  %better = fcmp ogt {V} %vsize, %best
  %best1 = select {B} %better, {V} %vsize, {V} %best
  %i.s = insertelement {I} poison, i64 %i, i32 0
  %i.v = shufflevector {I} %i.s, {I} poison, {S} zeroinitializer
  %which1 = select {B} %better, {I} %i.v, {I} %which
  %i1 = add i64 %i, 1
  br label %search
searched:
  %first = extractelement {I} %which, i32 0
  %f.s = insertelement {I} poison, i64 %first, i32 0
  %f.v = shufflevector {I} %f.s, {I} poison, {S} zeroinitializer
  %others = icmp ne {I} %which, %f.v
  %others.i = bitcast {B} %others to i{L}
  %mixed = icmp ne i{L} %others.i, 0
  br i1 %mixed, label %lane, label %alike
alike:
  %stays = icmp eq i64 %first, %k
  %frow = mul i64 %first, {w}
  br i1 %stays, label %pivoted, label %exchange
exchange:
  %j = phi i64 [ %k, %alike ], [ %j1, %exchange ]
  %kj = add i64 %krow, %j
  %fj = add i64 %frow, %j
  %p.kj = getelementptr {V}, ptr %a, i64 %kj
  %p.fj = getelementptr {V}, ptr %a, i64 %fj
  %x.kj = load {V}, ptr %p.kj, align 8
  %x.fj = load {V}, ptr %p.fj, align 8
  store {V} %x.fj, ptr %p.kj, align 8
  store {V} %x.kj, ptr %p.fj, align 8
  %j1 = add i64 %j, 1
  %j.more = icmp slt i64 %j1, {w}
  br i1 %j.more, label %exchange, label %pivoted
lane:
  %l = phi i64 [ 0, %searched ], [ %l1, %lane.done ]
  %row = extractelement {I} %which, i64 %l
  %rrow = mul i64 %row, {w}
  br label %lane.exchange
lane.exchange:
  %m = phi i64 [ %k, %lane ], [ %m1, %lane.exchange ]
  %km = add i64 %krow, %m
  %rm = add i64 %rrow, %m
  %km.first = mul i64 %km, {L}
  %rm.first = mul i64 %rm, {L}
  %km.l = add i64 %km.first, %l
  %rm.l = add i64 %rm.first, %l
  %p.km = getelementptr {T}, ptr %a, i64 %km.l
  %p.rm = getelementptr {T}, ptr %a, i64 %rm.l
  %x.km = load {T}, ptr %p.km
  %x.rm = load {T}, ptr %p.rm
  store {T} %x.rm, ptr %p.km
  store {T} %x.km, ptr %p.rm
  %m1 = add i64 %m, 1
  %m.more = icmp slt i64 %m1, {w}
  br i1 %m.more, label %lane.exchange, label %lane.done
lane.done:
  %l1 = add i64 %l, 1
  %l.more = icmp slt i64 %l1, {L}
  br i1 %l.more, label %lane, label %pivoted
pivoted:
  %pivot = load {V}, ptr %diagonal, align 8
  %is.zero = fcmp oeq {V} %pivot, zeroinitializer
  %none = fcmp oeq {V} %found, zeroinitializer
  %is.first = and {B} %is.zero, %none
  %k1.f = sitofp i64 %k1 to {T}
  %k1.s = insertelement {V} poison, {T} %k1.f, i32 0
  %k1.v = shufflevector {V} %k1.s, {V} poison, {S} zeroinitializer
  %found1 = select {B} %is.first, {V} %k1.v, {V} %found
  %one.s = insertelement {V} poison, {T} 1.0, i32 0
  %one = shufflevector {V} %one.s, {V} poison, {S} zeroinitializer
  %inverse = fdiv {V} %one, %pivot
  %scale = select {B} %is.zero, {V} %one, {V} %inverse
  store {V} %inverse, ptr %diagonal, align 8
  br label %rows
rows:
  %r = phi i64 [ %k1, %pivoted ], [ %r1, %row.done ]
  %r.more = icmp slt i64 %r, {n}
  br i1 %r.more, label %row.begin, label %eliminated
row.begin:
  %r.row = mul i64 %r, {w}
  %rk = add i64 %r.row, %k
  %p.rk = getelementptr {V}, ptr %a, i64 %rk
  %x.rk = load {V}, ptr %p.rk, align 8
  %factor = fmul {V} %x.rk, %scale
  %minus = fneg {V} %factor
  br label %element
element:
  %e = phi i64 [ %k1, %row.begin ], [ %e1, %element ]
  %ke = add i64 %krow, %e
  %re = add i64 %r.row, %e
  %p.ke = getelementptr {V}, ptr %a, i64 %ke
  %p.re = getelementptr {V}, ptr %a, i64 %re
  %x.ke = load {V}, ptr %p.ke, align 8
  %x.re = load {V}, ptr %p.re, align 8
  %less = call {V} @llvm.fma.{M}({V} %minus, {V} %x.ke, {V} %x.re)
  store {V} %less, ptr %p.re, align 8
  %e1 = add i64 %e, 1
  %e.more = icmp slt i64 %e1, {w}
  br i1 %e.more, label %element, label %row.done
row.done:
  %r1 = add i64 %r, 1
  br label %rows
eliminated:
  %k.more = icmp slt i64 %k1, {n}
  br i1 %k.more, label %column, label %back
back:
  %b = phi i64 [ {n}, %eliminated ], [ %b1, %back.done ]
  %b1 = sub i64 %b, 1
  %brow = mul i64 %b1, {w}
  %bb = add i64 %brow, %b1
  %p.bb = getelementptr {V}, ptr %a, i64 %bb
  %b.inverse = load {V}, ptr %p.bb, align 8
  br label %right
right:
  %c = phi i64 [ {n}, %back ], [ %c1, %right.done ]
  %bc = add i64 %brow, %c
  %p.bc = getelementptr {V}, ptr %a, i64 %bc
  %x.bc = load {V}, ptr %p.bc, align 8
  %x = fmul {V} %x.bc, %b.inverse
  store {V} %x, ptr %p.bc, align 8
  br label %above
above:
  %u = phi i64 [ 0, %right ], [ %u1, %above.less ]
  %u.more = icmp slt i64 %u, %b1
  br i1 %u.more, label %above.less, label %right.done
above.less:
  %urow = mul i64 %u, {w}
  %ub = add i64 %urow, %b1
  %uc = add i64 %urow, %c
  %p.ub = getelementptr {V}, ptr %a, i64 %ub
  %p.uc = getelementptr {V}, ptr %a, i64 %uc
  %x.ub = load {V}, ptr %p.ub, align 8
  %x.uc = load {V}, ptr %p.uc, align 8
  %minus.ub = fneg {V} %x.ub
  %x.less = call {V} @llvm.fma.{M}({V} %minus.ub, {V} %x, {V} %x.uc)
  store {V} %x.less, ptr %p.uc, align 8
  %u1 = add i64 %u, 1
  br label %above
right.done:
  %c1 = add i64 %c, 1
  %c.more = icmp slt i64 %c1, {w}
  br i1 %c.more, label %right, label %back.done
back.done:
  %b.more = icmp sgt i64 %b1, 0
  br i1 %b.more, label %back, label %done
done:
  %p.found = getelementptr {V}, ptr %a, i64 {end}
  store {V} %found1, ptr %p.found, align 8
  ret void
}
)";

}  // namespace

std::string print_solver(const std::string& name, Type type, int64_t lanes, int64_t size, int64_t columns) {
  return filled(kSolver, holes_of(type, lanes),
                {{"name", name},
                 {"n", std::to_string(size)},
                 {"w", std::to_string(size + columns)},
                 {"end", std::to_string(size * (size + columns))}});
}

}  // namespace tower::compiler
