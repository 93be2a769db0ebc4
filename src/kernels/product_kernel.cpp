#include "kernels/product_kernel.h"

#include <array>

#include "kernels/by_pointers.h"
#include "kernels/template.h"

namespace tower::compiler {
namespace {

constexpr int64_t kTermsOfBlock = 256;  // as kTerms in kernels/gemm_tiles.h
// A sum waits for its last product: of so many rows, others are made meanwhile.
constexpr int64_t kRowsOfBlock = 8;
// In a tile, as many as leave registers for what is read: of AVX-512 there are 32, of AVX2 and SSE 16.
constexpr int64_t kRowsOfTile = 2, kRowsOfWideTile = 4;

// The members of ProductNumbers.
constexpr std::array<const char*, 10> kNamesOfNumbers = {"columns",  "terms", "row.a",    "term.a", "term.b",
                                                         "column.b", "row.s", "column.s", "row.c",  "column.c"};

// Rows of the result, from their first column on: tiles of columns as long as there are enough, where they follow each
// other, and then single ones. A tile is of several rows, if there are two, which share what is read of B; of fewer
// that are left, the last one is computed several times. Where there are no tiles, as in the product with a vector,
// more rows are taken at a time.
constexpr const char* kFirstText = R"(
define {linkage}void @{name}(i64 %begin, i64 %end, ptr %inputs, ptr %outputs, ptr %fault) #0 {
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
  %most.rows = select i1 %no.tiles, i64 {rows_of_block}, i64 {rows_of_tile}
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %row, label %end.of.rows
row:
  %i = phi i64 [ %begin, %start ], [ %i1, %end.of.row ]
  %rows.left = sub i64 %end, %i
  %last.row = sub i64 %rows.left, 1
{rows}
  %are.rows = icmp sgt i64 %rows.left, %most.rows
  %rows.now = select i1 %are.rows, i64 %most.rows, i64 %rows.left
  %is.one.row = icmp eq i64 %rows.now, 1
  %i.a = mul i64 %i, %row.a
  %i.s = mul i64 %i, %row.s
  %i.c = mul i64 %i, %row.c
  %a.i = getelementptr i8, ptr %a, i64 %i.a
  %s.i = getelementptr i8, ptr %s, i64 %i.s
  %c.i = getelementptr i8, ptr %c, i64 %i.c
  br label %column
column:
  %j = phi i64 [ 0, %row ]{next_columns}
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
  br i1 %takes.tile, label %choose.tile, label %choose.single
choose.tile:
  br i1 %is.one.row, label %block.tile, label %block.tiles
choose.single:
  br i1 %is.one.row, label %block.one, label %choose.rows
choose.rows:
  br i1 %no.tiles, label %block.several, label %block.few
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

// Some rows and columns of the result, {tile}. What is done for each vector of columns, each row, and each of both
// stands between.
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
{of_b}
{of_a}
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

// Of a vector of columns.
constexpr const char* kOfBText = R"(
  %p.y{v}.{tile} = getelementptr i8, ptr %p.y.{tile}, i64 {offset}
  %y{v}.{tile} = load {E}, ptr %p.y{v}.{tile}, align {align}
)";
// Of a row.
constexpr const char* kOfAText = R"(
  %p.x{r}.{tile} = getelementptr i8, ptr %p.x.{tile}, i64 %row{r}.a
)";
constexpr const char* kNumberOfAText = R"(
  %x{r}.{tile} = load {T}, ptr %p.x{r}.{tile}
)";
constexpr const char* kVectorOfAText = R"(
  %x{r}.one.{tile} = load {T}, ptr %p.x{r}.{tile}
  %x{r}.first.{tile} = insertelement {V} poison, {T} %x{r}.one.{tile}, i32 0
  %x{r}.{tile} = shufflevector {V} %x{r}.first.{tile}, {V} poison, {S} zeroinitializer
)";
// The same where the product is subtracted.
constexpr const char* kMinusOfAText = R"(
  %minus.x{r}.{tile} = fneg {E} %x{r}.{tile}
)";

/// Rows and columns that are computed together.
struct Tile {
  const char *name, *chosen;     // what leads to it
  int64_t rows, vectors, lanes;  // of columns, and what a vector has of them
};

std::string print_tile(Type type, const Tile& tile, bool subtracts, const Holes& more) {
  const bool is_vector = tile.lanes > 1;
  const std::string element = is_vector ? vector_of(type, tile.lanes) : scalar(type);
  const std::string fma = "@llvm.fma." + (is_vector ? "v" + std::to_string(tile.lanes) : std::string()) + mangled(type);
  Holes holes = holes_of(type, tile.lanes);
  holes.emplace_back("E", element);
  holes.emplace_back("tile", tile.name);
  holes.emplace_back("fma", fma);
  holes.emplace_back("align", std::to_string(size_of(type)));
  holes.emplace_back("zero", is_vector ? "zeroinitializer" : "0.0");
  holes.emplace_back("chosen", tile.chosen);
  holes.emplace_back("x", subtracts ? "minus.x" : "x");
  const auto for_rows = [&](const std::string& text, int64_t v = 0) {
    std::string all;
    for (int64_t r = 0; r < tile.rows; ++r)
      all += filled(text, holes,
                    {{"r", std::to_string(r)},
                     {"v", std::to_string(v)},
                     {"offset", std::to_string(v * tile.lanes * size_of(type))}});
    return all;
  };
  const auto for_all = [&](const std::string& text) {
    std::string all;
    for (int64_t v = 0; v < tile.vectors; ++v) all += for_rows(text, v);
    return all;
  };
  std::string of_b;
  for (int64_t v = 0; v < tile.vectors; ++v)
    of_b +=
        filled(kOfBText, holes, {{"v", std::to_string(v)}, {"offset", std::to_string(v * tile.lanes * size_of(type))}});
  const Holes parts = {{"sums", for_all(R"(
  %sum{r}.{v}.{tile} = phi {E} [ {zero}, %block.{tile} ], [ %next{r}.{v}.{tile}, %term.{tile} ]
)")},
                       {"of_b", of_b},
                       {"of_a", for_rows(std::string(kOfAText).append(is_vector ? kVectorOfAText : kNumberOfAText) +
                                         (subtracts ? kMinusOfAText : ""))},
                       {"products", for_all(R"(
  %next{r}.{v}.{tile} = call {E} {fma}({E} %{x}{r}.{tile}, {E} %y{v}.{tile}, {E} %sum{r}.{v}.{tile})
)")},
                       {"before", for_rows(R"(
  %row{r}.from.{tile} = mul i64 %row.from.{tile}, %row{r}
)") + for_all(R"(
  %p.row{r}.{v}.{tile} = getelementptr i8, ptr %from.{tile}, i64 %row{r}.from.{tile}
  %p.before{r}.{v}.{tile} = getelementptr i8, ptr %p.row{r}.{v}.{tile}, i64 {offset}
  %before{r}.{v}.{tile} = load {E}, ptr %p.before{r}.{v}.{tile}, align {align}
  %with{r}.{v}.{tile} = fadd {E} %sum{r}.{v}.{tile}, %before{r}.{v}.{tile}
)")},
                       {"results", for_all(R"(
  %result{r}.{v}.{tile} = phi {E} [ %sum{r}.{v}.{tile}, %added.{tile} ], [ %with{r}.{v}.{tile}, %before.{tile} ]
)")},
                       {"stores", for_all(R"(
  %p.c{r}.{v}.{tile} = getelementptr i8, ptr %c.ij, i64 %row{r}.c
  %p.result{r}.{v}.{tile} = getelementptr i8, ptr %p.c{r}.{v}.{tile}, i64 {offset}
  store {E} %result{r}.{v}.{tile}, ptr %p.result{r}.{v}.{tile}, align {align}
)")},
                       {"columns_of_this", std::to_string(tile.lanes * tile.vectors)}};
  holes.insert(holes.end(), parts.begin(), parts.end());
  return filled(kTilesText, holes, more);
}

std::string product_text(Type type, const std::string& name, int64_t vector_bytes, bool subtracts,
                         const char* linkage) {
  const int64_t lanes = vector_bytes / size_of(type);
  std::string rows;
  for (int64_t v = 0; v < kRowsOfBlock; ++v)
    rows += filled(R"(
  %is.row{v} = icmp slt i64 {v}, %rows.left
  %row{v} = select i1 %is.row{v}, i64 {v}, i64 %last.row
  %row{v}.a = mul i64 %row.a, %row{v}
  %row{v}.c = mul i64 %row.c, %row{v}
)",
                   Holes{{"v", std::to_string(v)}});
  const int64_t rows_of_tile = vector_bytes < kBytesOfVector ? kRowsOfTile : kRowsOfWideTile;
  const std::array<Tile, 5> tiles = {{{"tiles", "choose.tile", rows_of_tile, kVectorsOfTile, lanes},
                                      {"tile", "choose.tile", 1, kVectorsOfTile, lanes},
                                      {"several", "choose.rows", kRowsOfBlock, 1, 1},
                                      {"few", "choose.rows", rows_of_tile, 1, 1},
                                      {"one", "choose.single", 1, 1, 1}}};
  std::string next_columns;
  for (const Tile& tile : tiles) next_columns += filled(", [ %j.{tile}, %done.{tile} ]", Holes{{"tile", tile.name}});
  const Holes all = {{"name", name},
                     {"linkage", linkage},
                     {"rows", rows},
                     {"next_columns", next_columns},
                     {"rows_of_tile", std::to_string(rows_of_tile)},
                     {"loads", loads_of(kNamesOfNumbers)},
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
  text += filled(kFirstText, all);
  for (const Tile& tile : tiles) text += print_tile(type, tile, subtracts, all);
  text += kLastText;
  text += "attributes #0 = { nounwind \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\" }\n";
  return text;
}

}  // namespace

KernelText print_product(Type type, const std::string& name, int64_t vector_bytes) {
  return {{product_text(type, name, vector_bytes, /*subtracts=*/false, ""), name}, 1, 1, 1};
}
std::string print_subtracted_product(Type type, const std::string& name, int64_t vector_bytes) {
  return product_text(type, name, vector_bytes, /*subtracts=*/true, "internal ");
}

}  // namespace tower::compiler
