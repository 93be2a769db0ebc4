#include "kernels/product_kernel.h"

#include <array>

#include "kernels/template.h"

namespace tower::compiler {
namespace {

constexpr int64_t kTermsOfBlock = 256;  // as kTerms in kernels/gemm.cpp
constexpr int64_t kVectorsOfTile = 4;

// The members of ProductNumbers.
constexpr std::array<const char*, 10> kNamesOfNumbers = {"columns",  "terms", "row.a",    "term.a", "term.b",
                                                         "column.b", "row.s", "column.s", "row.c",  "column.c"};

// A row of the result, from its first column on: tiles of columns as long as there are enough, where they follow each
// other, and then single ones.
constexpr const char* kFirstText = R"(
define void @{name}(i64 %begin, i64 %end, ptr %inputs, ptr %outputs, ptr %fault) #0 {
start:
  %p.b = getelementptr ptr, ptr %inputs, i64 1
  %p.s = getelementptr ptr, ptr %inputs, i64 2
  %p.numbers = getelementptr ptr, ptr %inputs, i64 3
  %a = load ptr, ptr %inputs
  %b = load ptr, ptr %p.b
  %s = load ptr, ptr %p.s
  %numbers = load ptr, ptr %p.numbers
  %c = load ptr, ptr %outputs
{loads}
  %has.s = icmp ne ptr %s, null
  %no.s = xor i1 %has.s, true
  %b.follows = icmp eq i64 %column.b, {bytes}
  %c.follows = icmp eq i64 %column.c, {bytes}
  %s.follows = icmp eq i64 %column.s, {bytes}
  %s.ready = or i1 %s.follows, %no.s
  %bc.follow = and i1 %b.follows, %c.follows
  %follow = and i1 %bc.follow, %s.ready
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %row, label %end.of.rows
row:
  %i = phi i64 [ %begin, %start ], [ %i1, %end.of.row ]
  %i.a = mul i64 %i, %row.a
  %i.s = mul i64 %i, %row.s
  %i.c = mul i64 %i, %row.c
  %a.i = getelementptr i8, ptr %a, i64 %i.a
  %s.i = getelementptr i8, ptr %s, i64 %i.s
  %c.i = getelementptr i8, ptr %c, i64 %i.c
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j.tile, %done.tile ], [ %j.one, %done.one ]
  %left = sub i64 %columns, %j
  %goes.on = icmp sgt i64 %left, 0
  br i1 %goes.on, label %choose, label %end.of.row
choose:
  %j.b = mul i64 %j, %column.b
  %j.s = mul i64 %j, %column.s
  %j.c = mul i64 %j, %column.c
  %b.j = getelementptr i8, ptr %b, i64 %j.b
  %s.ij = getelementptr i8, ptr %s.i, i64 %j.s
  %c.ij = getelementptr i8, ptr %c.i, i64 %j.c
  %fits = icmp sge i64 %left, {columns_of_tile}
  %takes.tile = and i1 %fits, %follow
  br i1 %takes.tile, label %block.tile, label %block.one
)";

constexpr const char* kLastText = R"(
end.of.row:
  %i1 = add i64 %i, 1
  %more.rows = icmp slt i64 %i1, %end
  br i1 %more.rows, label %row, label %end.of.rows
end.of.rows:
  ret void
}
)";

// The columns of a tile, or one: {tile}. What is done for each vector of these stands between.
constexpr const char* kTilesText = R"(
block.{tile}:
  %first.{tile} = phi i64 [ 0, %choose ], [ %last.{tile}, %stored.{tile} ]
  %behind.{tile} = add i64 %first.{tile}, {terms_of_block}
  %is.last.{tile} = icmp slt i64 %terms, %behind.{tile}
  %last.{tile} = select i1 %is.last.{tile}, i64 %terms, i64 %behind.{tile}
  br label %terms.{tile}
terms.{tile}:
  %k.{tile} = phi i64 [ %first.{tile}, %block.{tile} ], [ %k1.{tile}, %term.{tile} ]
{sums}
  %k.goes.{tile} = icmp slt i64 %k.{tile}, %last.{tile}
  br i1 %k.goes.{tile}, label %term.{tile}, label %added.{tile}
term.{tile}:
  %k.a.{tile} = mul i64 %k.{tile}, %term.a
  %k.b.{tile} = mul i64 %k.{tile}, %term.b
  %p.x.{tile} = getelementptr i8, ptr %a.i, i64 %k.a.{tile}
  %p.y.{tile} = getelementptr i8, ptr %b.j, i64 %k.b.{tile}
  %x.one.{tile} = load {T}, ptr %p.x.{tile}
{splat}
{products}
  %k1.{tile} = add i64 %k.{tile}, 1
  br label %terms.{tile}
added.{tile}:
  %is.first.{tile} = icmp eq i64 %first.{tile}, 0
  %from.{tile} = select i1 %is.first.{tile}, ptr %s.ij, ptr %c.ij
  %is.next.{tile} = xor i1 %is.first.{tile}, true
  %has.before.{tile} = or i1 %is.next.{tile}, %has.s
  br i1 %has.before.{tile}, label %before.{tile}, label %store.{tile}
before.{tile}:
{before}
  br label %store.{tile}
store.{tile}:
{results}
{stores}
  br label %stored.{tile}
stored.{tile}:
  %more.{tile} = icmp slt i64 %last.{tile}, %terms
  br i1 %more.{tile}, label %block.{tile}, label %done.{tile}
done.{tile}:
  %j.{tile} = add i64 %j, {columns_of_this}
  br label %column
)";

std::string print_tile(Type type, const std::string& tile, int64_t lanes, int64_t vectors, const Holes& more) {
  const std::string element = lanes == 1 ? scalar(type) : vector_of(type, lanes);
  const std::string fma = "@llvm.fma." + (lanes == 1 ? std::string() : "v" + std::to_string(lanes)) + mangled(type);
  Holes holes = holes_of(type, lanes);
  holes.emplace_back("E", element);
  holes.emplace_back("tile", tile);
  holes.emplace_back("fma", fma);
  holes.emplace_back("align", std::to_string(size_of(type)));
  holes.emplace_back("zero", lanes == 1 ? "0.0" : "zeroinitializer");
  holes.emplace_back("x", (lanes == 1 ? "%x.one." : "%x.") + tile);
  const auto for_each_vector = [&](const char* text) {
    std::string all;
    for (int64_t v = 0; v < vectors; ++v)
      all += filled(text, holes, {{"v", std::to_string(v)}, {"offset", std::to_string(v * lanes * size_of(type))}});
    return all;
  };
  const Holes parts = {{"sums", for_each_vector(R"(
  %sum{v}.{tile} = phi {E} [ {zero}, %block.{tile} ], [ %next{v}.{tile}, %term.{tile} ]
)")},
                       {"splat", lanes == 1 ? std::string()
                                            : filled(R"(
  %x.first.{tile} = insertelement {V} poison, {T} %x.one.{tile}, i32 0
  %x.{tile} = shufflevector {V} %x.first.{tile}, {V} poison, {S} zeroinitializer
)",
                                                     holes)},
                       {"products", for_each_vector(R"(
  %p.y{v}.{tile} = getelementptr i8, ptr %p.y.{tile}, i64 {offset}
  %y{v}.{tile} = load {E}, ptr %p.y{v}.{tile}, align {align}
  %next{v}.{tile} = call {E} {fma}({E} {x}, {E} %y{v}.{tile}, {E} %sum{v}.{tile})
)")},
                       {"before", for_each_vector(R"(
  %p.before{v}.{tile} = getelementptr i8, ptr %from.{tile}, i64 {offset}
  %before{v}.{tile} = load {E}, ptr %p.before{v}.{tile}, align {align}
  %with{v}.{tile} = fadd {E} %sum{v}.{tile}, %before{v}.{tile}
)")},
                       {"results", for_each_vector(R"(
  %result{v}.{tile} = phi {E} [ %sum{v}.{tile}, %added.{tile} ], [ %with{v}.{tile}, %before.{tile} ]
)")},
                       {"stores", for_each_vector(R"(
  %p.result{v}.{tile} = getelementptr i8, ptr %c.ij, i64 {offset}
  store {E} %result{v}.{tile}, ptr %p.result{v}.{tile}, align {align}
)")},
                       {"columns_of_this", std::to_string(lanes * vectors)}};
  holes.insert(holes.end(), parts.begin(), parts.end());
  return filled(kTilesText, holes, more);
}

}  // namespace

KernelText print_product(Type type, const std::string& name, int64_t vector_bytes) {
  const int64_t lanes = vector_bytes / size_of(type);
  std::string loads;
  for (size_t k = 0; k < kNamesOfNumbers.size(); ++k)
    loads += filled(R"(
  %p.{number} = getelementptr i64, ptr %numbers, i64 {k}
  %{number} = load i64, ptr %p.{number}
)",
                    Holes{{"number", kNamesOfNumbers[k]}, {"k", std::to_string(k)}});
  const Holes all = {{"name", name},
                     {"loads", loads},
                     {"bytes", std::to_string(size_of(type))},
                     {"columns_of_tile", std::to_string(lanes * kVectorsOfTile)},
                     {"terms_of_block", std::to_string(kTermsOfBlock)}};
  std::string text;
  for (const int64_t of : {int64_t{1}, lanes}) {
    const std::string element = of == 1 ? scalar(type) : vector_of(type, of);
    text += "declare " + element + " @llvm.fma." + (of == 1 ? std::string() : "v" + std::to_string(of)) +
            mangled(type) + "(" + element + ", " + element + ", " + element + ")\n";
  }
  text += filled(kFirstText, all) + print_tile(type, "tile", lanes, kVectorsOfTile, all) +
          print_tile(type, "one", 1, 1, all) + kLastText;
  text += "attributes #0 = { nounwind \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\" }\n";
  return {{std::move(text), name}, 1, 1, 1};
}

}  // namespace tower::compiler
