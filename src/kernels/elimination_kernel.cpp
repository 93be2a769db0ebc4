#include "kernels/elimination_kernel.h"

#include <array>

#include "kernels/by_pointers.h"
#include "kernels/product_kernel.h"
#include "kernels/template.h"

namespace tower::compiler {
namespace {

// The members of EliminationNumbers.
constexpr std::array<const char*, 6> kNamesOfNumbers = {"first", "rows", "columns", "t.column", "x.column", "unit"};

constexpr const char* kEntryText = R"(
define void @{name}(i64 %task, i64 %count, ptr %inputs, ptr %outputs, ptr %fault) #0 {
start:
  %is.product = icmp eq i64 %task, {of_products}
  br i1 %is.product, label %product, label %block
product:
  call void @{name}.product(i64 0, i64 %count, ptr %inputs, ptr %outputs, ptr %fault)
  ret void
block:
  %p.numbers = getelementptr ptr, ptr %inputs, i64 3
  %numbers = load ptr, ptr %p.numbers
  %t = load ptr, ptr %inputs
  %x = load ptr, ptr %outputs
  %p.pivots = getelementptr ptr, ptr %outputs, i64 1
  %p.info = getelementptr ptr, ptr %outputs, i64 2
  switch i64 %task, label %end [
    i64 {of_lu}, label %lu
    i64 {of_cholesky}, label %cholesky
    i64 {of_lower}, label %lower
    i64 {of_upper}, label %upper
    i64 {of_determinant}, label %determinant
  ]
lu:
  %pivots = load ptr, ptr %p.pivots
  %info = load ptr, ptr %p.info
  call void @{name}.lu(i64 %count, ptr %numbers, ptr %x, ptr %pivots, ptr %info)
  ret void
cholesky:
  %info.c = load ptr, ptr %p.info
  call void @{name}.cholesky(i64 %count, ptr %numbers, ptr %x, ptr %info.c)
  ret void
lower:
  call void @{name}.lower(i64 %count, ptr %numbers, ptr %t, ptr %x)
  ret void
upper:
  call void @{name}.upper(i64 %count, ptr %numbers, ptr %t, ptr %x)
  ret void
determinant:
  call void @{name}.determinant(i64 %count, ptr %numbers, ptr %t, ptr %outputs)
  ret void
end:
  ret void
}
)";

// That the column has no pivot, if none before it had none.
constexpr const char* kNoteNoPivotText = R"(
  %known = load i32, ptr %info
  %is.known = icmp ne i32 %known, 0
  %c1.i = trunc i64 %c1 to i32
  %info1 = select i1 %is.known, i32 %known, i32 %c1.i
  store i32 %info1, ptr %info
)";

// What is below the diagonal, scaled.
constexpr const char* kScaleRowText = R"(
scale.row:
  %s = phi i64 [ %c1, %scale ], [ %s1, %scaling ]
  %s.goes = icmp slt i64 %s, %rows
  br i1 %s.goes, label %scaling, label %{behind_scaling}
scaling:
  %p.s = getelementptr {T}, ptr %w.k, i64 %s
  %s.x = load {T}, ptr %p.s
  %s.y = {scale} {T} %s.x, {by}
  store {T} %s.y, ptr %p.s
  %s1 = add i64 %s, 1
  br label %scale.row
)";

// Columns of a matrix, from their first row on, whose diagonal begins in row `first`. By columns with the pivot that is
// largest, the first of several, as LAPACK has it; a column of zeros is passed over. Of a NaN that is no pivot already,
// nothing is larger, and it is larger than nothing. Rows are divided by the pivot: one in 1e-308 has no inverse.
constexpr const char* kLuText = R"(
define internal void @{name}.lu(i64 %count, ptr %numbers, ptr %w, ptr %pivots, ptr %info) #0 {
start:
{loads}
  br label %column
column:
  %k = phi i64 [ 0, %start ], [ %k1, %next ]
  %c = add i64 %first, %k
  %c1 = add i64 %c, 1
  %k1 = add i64 %k, 1
  %k.t = mul i64 %k, %t.column
  %w.k = getelementptr i8, ptr %w, i64 %k.t
  %p.diagonal = getelementptr {T}, ptr %w.k, i64 %c
  %d = load {T}, ptr %p.diagonal
  %size = call {T} @llvm.fabs.{m}({T} %d)
  %wide = add i64 %c1, {L_minus}
  %after = and i64 %wide, -{L}
  br label %search
search:
  %i = phi i64 [ %c1, %column ], [ %i1, %searching ]
  %best = phi {T} [ %size, %column ], [ %best1, %searching ]
  %which = phi i64 [ %c, %column ], [ %which1, %searching ]
  %i.in = icmp slt i64 %i, %rows
  %i.lone = icmp slt i64 %i, %after
  %i.goes = and i1 %i.in, %i.lone
  br i1 %i.goes, label %searching, label %search.vectors
searching:
  %p.v = getelementptr {T}, ptr %w.k, i64 %i
  %v = load {T}, ptr %p.v
  %v.size = call {T} @llvm.fabs.{m}({T} %v)
  %better = fcmp ogt {T} %v.size, %best
  %best1 = select i1 %better, {T} %v.size, {T} %best
  %which1 = select i1 %better, i64 %i, i64 %which
  %i1 = add i64 %i, 1
  br label %search
search.vectors:
  %best.s = insertelement {V} poison, {T} %best, i32 0
  %best.v = shufflevector {V} %best.s, {V} poison, {S} zeroinitializer
  %which.s = insertelement {I} poison, i64 %which, i32 0
  %which.v = shufflevector {I} %which.s, {I} poison, {S} zeroinitializer
  br label %look
look:
  %n = phi i64 [ %i, %search.vectors ], [ %n1, %looking ]
  %bests = phi {V} [ %best.v, %search.vectors ], [ %bests1, %looking ]
  %whiches = phi {I} [ %which.v, %search.vectors ], [ %whiches1, %looking ]
  %n1 = add i64 %n, {L}
  %n.goes = icmp sle i64 %n1, %rows
  br i1 %n.goes, label %looking, label %looked
looking:
  %p.u = getelementptr {T}, ptr %w.k, i64 %n
  %u = load {V}, ptr %p.u, align {align}
  %u.size = call {V} @llvm.fabs.{M}({V} %u)
  %betters = fcmp ogt {V} %u.size, %bests
  %bests1 = select {B} %betters, {V} %u.size, {V} %bests
  %n.s = insertelement {I} poison, i64 %n, i32 0
  %n.v = shufflevector {I} %n.s, {I} poison, {S} zeroinitializer
  %whiches1 = select {B} %betters, {I} %n.v, {I} %whiches
  br label %look
looked:
  br label %lane
lane:
  %l = phi i64 [ 0, %looked ], [ %l1, %lane ]
  %lane.best = phi {T} [ %best, %looked ], [ %lane.best1, %lane ]
  %lane.which = phi i64 [ %which, %looked ], [ %lane.which1, %lane ]
  %l.best = extractelement {V} %bests, i64 %l
  %l.first = extractelement {I} %whiches, i64 %l
  %l.here = add i64 %l.first, %l
  %l.larger = fcmp ogt {T} %l.best, %lane.best
  %l.equal = fcmp oeq {T} %l.best, %lane.best
  %l.before = icmp slt i64 %l.here, %lane.which
  %l.sooner = and i1 %l.equal, %l.before
  %l.better = or i1 %l.larger, %l.sooner
  %l.found = fcmp ogt {T} %l.best, %best
  %l.takes = and i1 %l.better, %l.found
  %lane.best1 = select i1 %l.takes, {T} %l.best, {T} %lane.best
  %lane.which1 = select i1 %l.takes, i64 %l.here, i64 %lane.which
  %l1 = add i64 %l, 1
  %l.goes = icmp slt i64 %l1, {L}
  br i1 %l.goes, label %lane, label %rest
rest:
  %r = phi i64 [ %n, %lane ], [ %r1, %resting ]
  %most = phi {T} [ %lane.best1, %lane ], [ %most1, %resting ]
  %row = phi i64 [ %lane.which1, %lane ], [ %row1, %resting ]
  %r.goes = icmp slt i64 %r, %rows
  br i1 %r.goes, label %resting, label %found
resting:
  %p.z = getelementptr {T}, ptr %w.k, i64 %r
  %z = load {T}, ptr %p.z
  %z.size = call {T} @llvm.fabs.{m}({T} %z)
  %z.better = fcmp ogt {T} %z.size, %most
  %most1 = select i1 %z.better, {T} %z.size, {T} %most
  %row1 = select i1 %z.better, i64 %r, i64 %row
  %r1 = add i64 %r, 1
  br label %rest
found:
  %row.from.one = add i64 %row, 1
  %row.i = trunc i64 %row.from.one to i32
  %p.pivot = getelementptr i32, ptr %pivots, i64 %k
  store i32 %row.i, ptr %p.pivot
  %stays = icmp eq i64 %row, %c
  br i1 %stays, label %pivoted, label %exchange
exchange:
  %e = phi i64 [ 0, %found ], [ %e1, %exchange ]
  %e.t = mul i64 %e, %t.column
  %w.e = getelementptr i8, ptr %w, i64 %e.t
  %p.here = getelementptr {T}, ptr %w.e, i64 %c
  %p.there = getelementptr {T}, ptr %w.e, i64 %row
  %here = load {T}, ptr %p.here
  %there = load {T}, ptr %p.there
  store {T} %there, ptr %p.here
  store {T} %here, ptr %p.there
  %e1 = add i64 %e, 1
  %e.goes = icmp slt i64 %e1, %count
  br i1 %e.goes, label %exchange, label %pivoted
pivoted:
  %pivot = load {T}, ptr %p.diagonal
  %is.zero = fcmp oeq {T} %pivot, 0.0
  br i1 %is.zero, label %no.pivot, label %scale
no.pivot:
{note_no_pivot}
  br label %next
scale:
  br label %scale.row
{scale_row}
others:
  %are.rows = icmp slt i64 %c1, %rows
  br i1 %are.rows, label %other, label %next
other:
  %j = phi i64 [ %k1, %others ], [ %j1, %lessened ]
  %j.goes = icmp slt i64 %j, %count
  br i1 %j.goes, label %less, label %next
less:
  %j.t = mul i64 %j, %t.column
  %w.j = getelementptr i8, ptr %w, i64 %j.t
  %p.factor = getelementptr {T}, ptr %w.j, i64 %c
  %factor = load {T}, ptr %p.factor
{less}
lessened:
  %j1 = add i64 %j, 1
  br label %other
next:
  %k.goes = icmp slt i64 %k1, %count
  br i1 %k.goes, label %column, label %end
end:
  ret void
}
)";

// The same of a symmetric matrix, of which the lower half is there: no rows are exchanged, and there are square roots.
constexpr const char* kCholeskyText = R"(
define internal void @{name}.cholesky(i64 %count, ptr %numbers, ptr %w, ptr %info) #0 {
start:
{loads}
  br label %column
column:
  %k = phi i64 [ 0, %start ], [ %k1, %next ]
  %c = add i64 %first, %k
  %c1 = add i64 %c, 1
  %k1 = add i64 %k, 1
  %k.t = mul i64 %k, %t.column
  %w.k = getelementptr i8, ptr %w, i64 %k.t
  %p.diagonal = getelementptr {T}, ptr %w.k, i64 %c
  %d = load {T}, ptr %p.diagonal
  %is.positive = fcmp ogt {T} %d, 0.0
  br i1 %is.positive, label %scale, label %no.pivot
no.pivot:
{note_no_pivot}
  br label %scale
scale:
  %root = call {T} @llvm.sqrt.{m}({T} %d)
  store {T} %root, ptr %p.diagonal
  %inverse = fdiv {T} 1.0, %root
  br label %scale.row
{scale_row}
other:
  %j = phi i64 [ %k1, %scale.row ], [ %j1, %lessened ]
  %j.goes = icmp slt i64 %j, %count
  br i1 %j.goes, label %less, label %next
less:
  %j.t = mul i64 %j, %t.column
  %w.j = getelementptr i8, ptr %w, i64 %j.t
  %j.row = add i64 %first, %j
  %p.factor = getelementptr {T}, ptr %w.k, i64 %j.row
  %factor = load {T}, ptr %p.factor
{less}
lessened:
  %j1 = add i64 %j, 1
  br label %other
next:
  %k.goes = icmp slt i64 %k1, %count
  br i1 %k.goes, label %column, label %end
end:
  ret void
}
)";

// T X = B of a block of T's diagonal, which begins in row and column `first`: X is in the place of B. By columns of T,
// from the first to the last in the lower triangle, and from the last to the first in the upper one.
constexpr const char* kTriangleText = R"(
define internal void @{name}.{triangle}(i64 %count, ptr %numbers, ptr %t, ptr %x) #0 {
start:
{loads}
  %is.unit = icmp ne i64 %unit, 0
  %behind = add i64 %first, %count
  br label %row
row:
  %step = phi i64 [ 0, %start ], [ %step1, %next ]
  %step1 = add i64 %step, 1
{place}
  %c = add i64 %first, %k
  %c1 = add i64 %c, 1
  %k.t = mul i64 %k, %t.column
  %w.k = getelementptr i8, ptr %t, i64 %k.t
  %p.diagonal = getelementptr {T}, ptr %w.k, i64 %c
  %d = load {T}, ptr %p.diagonal
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j1, %lessened ]
  %j.x = mul i64 %j, %x.column
  %w.j = getelementptr i8, ptr %x, i64 %j.x
  %p.factor = getelementptr {T}, ptr %w.j, i64 %c
  %b = load {T}, ptr %p.factor
  br i1 %is.unit, label %divided, label %divide
divide:
  %quotient = fdiv {T} %b, %d
  store {T} %quotient, ptr %p.factor
  br label %divided
divided:
  %factor = phi {T} [ %b, %column ], [ %quotient, %divide ]
  %are.rows = icmp slt i64 {begin}, {end}
  br i1 %are.rows, label %less, label %lessened
less:
{less}
lessened:
  %j1 = add i64 %j, 1
  %j.goes = icmp slt i64 %j1, %columns
  br i1 %j.goes, label %column, label %next
next:
  %more = icmp slt i64 %step1, %count
  br i1 %more, label %row, label %end
end:
  ret void
}
)";

// The product of a diagonal, with the sign of the exchanges; and that sign, and the product's size as a number from one
// to two, and a power of two. What is zero, infinite, NaN or smaller than the smallest normal number is multiplied as
// it is.
constexpr const char* kDeterminantText = R"(
define internal void @{name}.determinant(i64 %count, ptr %numbers, ptr %t, ptr %outputs) #0 {
start:
{loads}
  %p.pivots = getelementptr ptr, ptr %outputs, i64 1
  %p.sign = getelementptr ptr, ptr %outputs, i64 2
  %p.mantissa = getelementptr ptr, ptr %outputs, i64 3
  %p.exponent = getelementptr ptr, ptr %outputs, i64 4
  %to.all = load ptr, ptr %outputs
  %pivots = load ptr, ptr %p.pivots
  %to.sign = load ptr, ptr %p.sign
  %to.mantissa = load ptr, ptr %p.mantissa
  %to.exponent = load ptr, ptr %p.exponent
  br label %row
row:
  %k = phi i64 [ 0, %start ], [ %k1, %multiply ]
  %all = phi {T} [ 1.0, %start ], [ %all1, %multiply ]
  %sign = phi {T} [ 1.0, %start ], [ %sign1, %multiply ]
  %mantissa = phi {T} [ 1.0, %start ], [ %product.mantissa, %multiply ]
  %exponent = phi i64 [ 0, %start ], [ %exponent1, %multiply ]
  %goes = icmp slt i64 %k, %count
  br i1 %goes, label %multiply, label %end
multiply:
  %k1 = add i64 %k, 1
  %k.t = mul i64 %k, %t.column
  %w.k = getelementptr i8, ptr %t, i64 %k.t
  %p.diagonal = getelementptr {T}, ptr %w.k, i64 %k
  %d = load {T}, ptr %p.diagonal
  %p.pivot = getelementptr i32, ptr %pivots, i64 %k
  %pivot = load i32, ptr %p.pivot
  %k1.i = trunc i64 %k1 to i32
  %stays = icmp eq i32 %pivot, %k1.i
  %minus.d = fneg {T} %d
  %signed = select i1 %stays, {T} %d, {T} %minus.d
  %all1 = fmul {T} %all, %signed
  %is.above = fcmp ogt {T} %signed, 0.0
  %is.below = fcmp olt {T} %signed, 0.0
  %minus.sign = fneg {T} %sign
  %same.sign = select i1 %is.above, {T} %sign, {T} %minus.sign
  %is.number = or i1 %is.above, %is.below
  %times.none = fmul {T} %sign, %signed
  %sign1 = select i1 %is.number, {T} %same.sign, {T} %times.none
  %size = call {T} @llvm.fabs.{m}({T} %d)
{normal_size}
  %product = fmul {T} %mantissa, %size.mantissa
{normal_product}
  %exponent.of.size = add i64 %exponent, %size.exponent
  %exponent1 = add i64 %exponent.of.size, %product.exponent
  br label %row
end:
  store {T} %all, ptr %to.all
  %exponent.x = sitofp i64 %exponent to {T}
  %wants.size = icmp ne ptr %to.sign, null
  br i1 %wants.size, label %store, label %done
store:
  store {T} %sign, ptr %to.sign
  store {T} %mantissa, ptr %to.mantissa
  store {T} %exponent.x, ptr %to.exponent
  br label %done
done:
  ret void
}
)";

// A number that is not negative as one from one to two, and the exponent of two that it is multiplied by.
constexpr const char* kNormalText = R"(
  %{x}.bits = bitcast {T} %{x} to i{bits}
  %{x}.biased = lshr i{bits} %{x}.bits, {bits_of_mantissa}
  %{x}.is.small = icmp eq i{bits} %{x}.biased, 0
  %{x}.is.large = icmp eq i{bits} %{x}.biased, {largest_exponent}
  %{x}.is.other = or i1 %{x}.is.small, %{x}.is.large
  %{x}.kept = and i{bits} %{x}.bits, {mask_of_mantissa}
  %{x}.one = or i{bits} %{x}.kept, {bits_of_one}
  %{x}.normal = bitcast i{bits} %{x}.one to {T}
  %{x}.mantissa = select i1 %{x}.is.other, {T} %{x}, {T} %{x}.normal
  %{x}.wide = {widen}
  %{x}.unbiased = sub i64 %{x}.wide, {bias}
  %{x}.exponent = select i1 %{x}.is.other, i64 0, i64 %{x}.unbiased
)";

// Takes the factor times column w.k from column w.j, from row `begin` to before row `end`, in vectors that begin at
// multiples of their lanes: lanes of the first that are before `begin` stay as they are. Behind `end` nobody reads.
constexpr const char* kLessFromText = R"(
{factors}
  %lead.first = and i64 {begin}, -{L}
  %lead = sub i64 {begin}, %lead.first
  %lead.i = trunc i64 %lead to i32
  %lead.s = insertelement {S} poison, i32 %lead.i, i32 0
  %lead.v = shufflevector {S} %lead.s, {S} poison, {S} zeroinitializer
  %is.behind = icmp sge {S} {lane_numbers}, %lead.v
  %p.lead.t = getelementptr {T}, ptr %w.k, i64 %lead.first
  %p.lead.x = getelementptr {T}, ptr %w.j, i64 %lead.first
  %lead.t = load {V}, ptr %p.lead.t, align {align}
  %lead.x = load {V}, ptr %p.lead.x, align {align}
  %lead.less = call {V} @llvm.fma.{M}({V} %minus, {V} %lead.t, {V} %lead.x)
  %lead.y = select {B} %is.behind, {V} %lead.less, {V} %lead.x
  store {V} %lead.y, ptr %p.lead.x, align {align}
  %vector.first = add i64 %lead.first, {L}
  br label %vector
vector:
  %m = phi i64 [ %vector.first, %less ], [ %m1, %vector.less ]
  %m.goes = icmp slt i64 %m, {end}
  br i1 %m.goes, label %vector.less, label %lessened
{vector_less}
)";
// The same where it begins with a vector, and lanes of the last one stay as they are.
constexpr const char* kLessToText = R"(
{factors}
  br label %vector
vector:
  %m = phi i64 [ {begin}, %less ], [ %m1, %vector.less ]
  %m.behind = add i64 %m, {L}
  %m.goes = icmp sle i64 %m.behind, {end}
  br i1 %m.goes, label %vector.less, label %last
{vector_less}
last:
  %left = sub i64 {end}, %m
  %are.left = icmp sgt i64 %left, 0
  br i1 %are.left, label %last.less, label %lessened
last.less:
  %left.i = trunc i64 %left to i32
  %left.s = insertelement {S} poison, i32 %left.i, i32 0
  %left.v = shufflevector {S} %left.s, {S} poison, {S} zeroinitializer
  %is.before = icmp slt {S} {lane_numbers}, %left.v
  %p.last.t = getelementptr {T}, ptr %w.k, i64 %m
  %p.last.x = getelementptr {T}, ptr %w.j, i64 %m
  %last.t = load {V}, ptr %p.last.t, align {align}
  %last.x = load {V}, ptr %p.last.x, align {align}
  %last.y0 = call {V} @llvm.fma.{M}({V} %minus, {V} %last.t, {V} %last.x)
  %last.y = select {B} %is.before, {V} %last.y0, {V} %last.x
  store {V} %last.y, ptr %p.last.x, align {align}
  br label %lessened
)";
constexpr const char* kFactorsText = R"(
  %minus.one = fneg {T} %factor
  %minus.s = insertelement {V} poison, {T} %minus.one, i32 0
  %minus = shufflevector {V} %minus.s, {V} poison, {S} zeroinitializer
)";
constexpr const char* kVectorLessText = R"(
vector.less:
  %p.m.t = getelementptr {T}, ptr %w.k, i64 %m
  %p.m.x = getelementptr {T}, ptr %w.j, i64 %m
  %m.t = load {V}, ptr %p.m.t, align {align}
  %m.x = load {V}, ptr %p.m.x, align {align}
  %m.y = call {V} @llvm.fma.{M}({V} %minus, {V} %m.t, {V} %m.x)
  store {V} %m.y, ptr %p.m.x, align {align}
  %m1 = add i64 %m, {L}
  br label %vector
)";

constexpr const char* kDeclarationsText = R"(
declare {T} @llvm.fabs.{m}({T})
declare {V} @llvm.fabs.{M}({V})
declare {T} @llvm.sqrt.{m}({T})
)";

std::string normal_text(Type type, const std::string& x) {
  const bool is_double = type == Type::f64;
  const int64_t mantissa = is_double ? 52 : 23, bias = is_double ? 1023 : 127;
  return filled(kNormalText,
                Holes{{"x", x},
                      {"T", scalar(type)},
                      {"bits", is_double ? "64" : "32"},
                      {"bits_of_mantissa", std::to_string(mantissa)},
                      {"largest_exponent", std::to_string(2 * bias + 1)},
                      {"mask_of_mantissa", std::to_string((int64_t{1} << mantissa) - 1)},
                      {"bits_of_one", std::to_string(bias << mantissa)},
                      {"widen", is_double ? "add i64 %" + x + ".biased, 0" : "zext i32 %" + x + ".biased to i64"},
                      {"bias", std::to_string(bias)}});
}

}  // namespace

KernelText print_elimination(Type type, const std::string& name, int64_t vector_bytes) {
  const int64_t lanes = vector_bytes / size_of(type);
  std::string lane_numbers;
  for (int64_t l = 0; l < lanes; ++l) lane_numbers += (l ? ", i32 " : "<i32 ") + std::to_string(l);
  Holes holes = holes_of(type, lanes);
  holes.emplace_back("name", name);
  holes.emplace_back("m", mangled(type));
  holes.emplace_back("loads", loads_of(kNamesOfNumbers));
  holes.emplace_back("note_no_pivot", kNoteNoPivotText);
  holes.emplace_back("align", std::to_string(size_of(type)));
  holes.emplace_back("L_minus", std::to_string(lanes - 1));
  holes.emplace_back("lane_numbers", lane_numbers + ">");
  for (const auto& [hole, task] : {std::pair("of_products", kOfProducts),
                                   {"of_lu", kOfLu},
                                   {"of_cholesky", kOfCholesky},
                                   {"of_lower", kOfLower},
                                   {"of_upper", kOfUpper},
                                   {"of_determinant", kOfDeterminant}})
    holes.emplace_back(hole, std::to_string(task));
  const auto with_less = [&](const char* text, const char* less, const char* begin, const char* end, Holes more = {}) {
    more.insert(more.end(), {{"begin", begin},
                             {"end", end},
                             {"factors", filled(kFactorsText, holes)},
                             {"vector_less", filled(kVectorLessText, holes)}});
    more.emplace_back("less", filled(less, holes, more));
    return filled(text, holes, more);
  };
  std::string text = print_subtracted_product(type, name + ".product", vector_bytes);
  text += filled(kDeclarationsText, holes);
  text += filled(kEntryText, holes);
  const auto scale_row = [&](const char* scale, const char* by, const char* behind) {
    return filled(kScaleRowText, holes, {{"scale", scale}, {"by", by}, {"behind_scaling", behind}});
  };
  text += with_less(kLuText, kLessFromText, "%c1", "%rows", {{"scale_row", scale_row("fdiv", "%pivot", "others")}});
  text += with_less(kCholeskyText, kLessFromText, "%j.row", "%rows",
                    {{"scale_row", scale_row("fmul", "%inverse", "other")}});
  text += with_less(kTriangleText, kLessFromText, "%c1", "%behind",
                    {{"triangle", "lower"}, {"place", "  %k = add i64 %step, 0\n"}});
  text += with_less(kTriangleText, kLessToText, "%first", "%c",
                    {{"triangle", "upper"}, {"place", "  %k = sub i64 %count, %step1\n"}});
  text += filled(kDeterminantText, holes,
                 {{"normal_size", normal_text(type, "size")}, {"normal_product", normal_text(type, "product")}});
  return {{std::move(text), name}, 1, 1, 1};
}

}  // namespace tower::compiler
