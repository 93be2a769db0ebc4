#include "kernels/product_kernel.h"

#include <array>

#include "kernels/template.h"

namespace tower::compiler {
namespace {

constexpr int64_t kTermsOfBlock = 256;  // as kTerms in kernels/gemm.cpp
// A sum waits for its last product: of so many rows, others are made meanwhile.
constexpr int64_t kRowsOfBlock = 8;

// The members of ProductNumbers.
constexpr std::array<const char*, 10> kNamesOfNumbers = {"columns",  "terms", "row.a",    "term.a", "term.b",
                                                         "column.b", "row.s", "column.s", "row.c",  "column.c"};

// A row of the result, from its first column on: tiles of columns as long as there are enough, where they follow each
// other, and then single ones. Where there are no tiles, as in the product with a vector, several rows at a time; of
// fewer that are left, the last one is computed several times.
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
  %few = icmp slt i64 %columns, {columns_of_tile}
  %apart = xor i1 %follow, true
  %no.tiles = or i1 %few, %apart
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %row, label %end.of.rows
row:
  %i = phi i64 [ %begin, %start ], [ %i1, %end.of.row ]
  %rows.left = sub i64 %end, %i
  %last.row = sub i64 %rows.left, 1
{rows}
  %are.rows = icmp sgt i64 %rows.left, {rows_of_block}
  %rows.there = select i1 %are.rows, i64 {rows_of_block}, i64 %rows.left
  %rows.now = select i1 %no.tiles, i64 %rows.there, i64 1
  %i.a = mul i64 %i, %row.a
  %i.s = mul i64 %i, %row.s
  %i.c = mul i64 %i, %row.c
  %a.i = getelementptr i8, ptr %a, i64 %i.a
  %s.i = getelementptr i8, ptr %s, i64 %i.s
  %c.i = getelementptr i8, ptr %c, i64 %i.c
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j.tile, %done.tile ], [ %j.several, %done.several ], [ %j.one, %done.one ]
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
  br i1 %no.tiles, label %block.several, label %choose.columns
choose.columns:
  br i1 %takes.tile, label %block.tile, label %block.one
)";

constexpr const char* kLastText = R"(
end.of.row:
  %i1 = add i64 %i, %rows.now
  %more.rows = icmp slt i64 %i1, %end
  br i1 %more.rows, label %row, label %end.of.rows
end.of.rows:
  ret void
}
)";

// The columns of a tile, or one, or one of several rows: {tile}. What is done for each vector or row stands between.
constexpr const char* kTilesText = R"(
block.{tile}:
  %first.{tile} = phi i64 [ 0, %{chosen} ], [ %last.{tile}, %stored.{tile} ]
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
{shared}
{products}
  %k1.{tile} = add i64 %k.{tile}, 1
  br label %terms.{tile}
added.{tile}:
  %is.first.{tile} = icmp eq i64 %first.{tile}, 0
  %from.{tile} = select i1 %is.first.{tile}, ptr %s.ij, ptr %c.ij
  %row.from.{tile} = select i1 %is.first.{tile}, i64 %row.s, i64 %row.c
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

// What differs among a tile's vectors of columns, and among rows.
struct Parts {
  const char *chosen, *shared, *product, *before, *store;
};
constexpr Parts kOfColumns = {"choose.columns",
                              R"(
  %x.one.{tile} = load {T}, ptr %p.x.{tile}
  %x.first.{tile} = insertelement {V} poison, {T} %x.one.{tile}, i32 0
  %x.{tile} = shufflevector {V} %x.first.{tile}, {V} poison, {S} zeroinitializer
)",
                              R"(
  %p.y{v}.{tile} = getelementptr i8, ptr %p.y.{tile}, i64 {offset}
  %y{v}.{tile} = load {E}, ptr %p.y{v}.{tile}, align {align}
  %next{v}.{tile} = call {E} {fma}({E} %x.{tile}, {E} %y{v}.{tile}, {E} %sum{v}.{tile})
)",
                              R"(
  %p.before{v}.{tile} = getelementptr i8, ptr %from.{tile}, i64 {offset}
)",
                              R"(
  %p.result{v}.{tile} = getelementptr i8, ptr %c.ij, i64 {offset}
)"};
constexpr Parts kOfRows = {"choose",
                           R"(
  %y.{tile} = load {T}, ptr %p.y.{tile}
)",
                           R"(
  %row{v}.a.{tile} = mul i64 %row.a, %row{v}
  %p.x{v}.{tile} = getelementptr i8, ptr %p.x.{tile}, i64 %row{v}.a.{tile}
  %x{v}.{tile} = load {T}, ptr %p.x{v}.{tile}
  %next{v}.{tile} = call {E} {fma}({E} %x{v}.{tile}, {E} %y.{tile}, {E} %sum{v}.{tile})
)",
                           R"(
  %row{v}.from.{tile} = mul i64 %row.from.{tile}, %row{v}
  %p.before{v}.{tile} = getelementptr i8, ptr %from.{tile}, i64 %row{v}.from.{tile}
)",
                           R"(
  %row{v}.c.{tile} = mul i64 %row.c, %row{v}
  %p.result{v}.{tile} = getelementptr i8, ptr %c.ij, i64 %row{v}.c.{tile}
)"};
constexpr Parts kOfOne = {"choose.columns", "\n  %x.{tile} = load {T}, ptr %p.x.{tile}\n", kOfColumns.product,
                          kOfColumns.before, kOfColumns.store};

// `count`: vectors of `lanes` columns, or rows.
std::string print_tile(Type type, const std::string& tile, const Parts& of, int64_t lanes, int64_t count,
                       const Holes& more) {
  const std::string element = lanes == 1 ? scalar(type) : vector_of(type, lanes);
  const std::string fma = "@llvm.fma." + (lanes == 1 ? std::string() : "v" + std::to_string(lanes)) + mangled(type);
  Holes holes = holes_of(type, lanes);
  holes.emplace_back("E", element);
  holes.emplace_back("tile", tile);
  holes.emplace_back("fma", fma);
  holes.emplace_back("align", std::to_string(size_of(type)));
  holes.emplace_back("zero", lanes == 1 ? "0.0" : "zeroinitializer");
  holes.emplace_back("chosen", of.chosen);
  const auto for_each = [&](const std::string& text) {
    std::string all;
    for (int64_t v = 0; v < count; ++v)
      all += filled(text, holes, {{"v", std::to_string(v)}, {"offset", std::to_string(v * lanes * size_of(type))}});
    return all;
  };
  const Holes parts = {
      {"sums", for_each(R"(
  %sum{v}.{tile} = phi {E} [ {zero}, %block.{tile} ], [ %next{v}.{tile}, %term.{tile} ]
)")},
      {"shared", filled(of.shared, holes)},
      {"products", for_each(of.product)},
      {"before",
       for_each(of.before + std::string(R"(  %before{v}.{tile} = load {E}, ptr %p.before{v}.{tile}, align {align}
  %with{v}.{tile} = fadd {E} %sum{v}.{tile}, %before{v}.{tile}
)"))},
      {"results", for_each(R"(
  %result{v}.{tile} = phi {E} [ %sum{v}.{tile}, %added.{tile} ], [ %with{v}.{tile}, %before.{tile} ]
)")},
      {"stores",
       for_each(of.store + std::string(R"(  store {E} %result{v}.{tile}, ptr %p.result{v}.{tile}, align {align}
)"))},
      {"columns_of_this", std::to_string(&of == &kOfRows ? 1 : lanes * count)}};
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
  std::string rows;
  for (int64_t v = 0; v < kRowsOfBlock; ++v)
    rows += filled(R"(
  %is.row{v} = icmp slt i64 {v}, %rows.left
  %row{v} = select i1 %is.row{v}, i64 {v}, i64 %last.row
)",
                   Holes{{"v", std::to_string(v)}});
  const Holes all = {{"name", name},
                     {"rows", rows},
                     {"loads", loads},
                     {"bytes", std::to_string(size_of(type))},
                     {"columns_of_tile", std::to_string(lanes * kVectorsOfTile)},
                     {"rows_of_block", std::to_string(kRowsOfBlock)},
                     {"terms_of_block", std::to_string(kTermsOfBlock)}};
  std::string text;
  for (const int64_t of : {int64_t{1}, lanes}) {
    const std::string element = of == 1 ? scalar(type) : vector_of(type, of);
    text += "declare " + element + " @llvm.fma." + (of == 1 ? std::string() : "v" + std::to_string(of)) +
            mangled(type) + "(" + element + ", " + element + ", " + element + ")\n";
  }
  text += filled(kFirstText, all) + print_tile(type, "tile", kOfColumns, lanes, kVectorsOfTile, all) +
          print_tile(type, "several", kOfRows, 1, kRowsOfBlock, all) + print_tile(type, "one", kOfOne, 1, 1, all) +
          kLastText;
  text += "attributes #0 = { nounwind \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\" }\n";
  return {{std::move(text), name}, 1, 1, 1};
}

}  // namespace tower::compiler
