// NOTE [Walked rows]
// Short rows, as of a tensor that is multiplied by another with one element for each, or of a table that is read where
// an index points: to begin anew for each takes longer than the row. So the kernel has all of a loop over rows of a
// length that it knows, which is whole vectors:
//
//   rows:     %row = phi i64 [ %begin, %start ], [ %nextrow, %next ]
//             where the row begins in each input and output; what is one for the row
//             its lanes, as in a kernel that walks none
//   next:     the next row
//
// The kernel is told how far apart rows are in bytes. Where an index has a row's number, the row is that one.
#include "kernels/printer.h"

namespace tower::compiler {

// Where the row begins that the index has the number of. Where there is no such row, it is the first.
void Printer::print_row_at(size_t input) {
  const auto& [index, n, stride, from_the_end] = *region_.inputs[input].at;
  const Type t = region_.inputs[index].type;
  std::string number = line(std::string("load ") + in_memory(t) + ", ptr %pi" + std::to_string(index));
  if (t != Type::i64) number = line(std::string("sext ") + in_memory(t) + " " + number + " to i64");
  if (from_the_end) {
    const std::string there = line("add i64 " + number + ", " + std::to_string(n));
    number = line("select i1 " + line("icmp slt i64 " + number + ", 0") + ", i64 " + there + ", i64 " + number);
  }
  const std::string is_none = line("icmp uge i64 " + number + ", " + std::to_string(n));
  report(is_none, kOutOfRange);
  const std::string row = line("select i1 " + is_none + ", i64 0, i64 " + number);
  const std::string bytes =
      line("mul i64 " + row + ", " + std::to_string(stride * size_of(region_.inputs[input].type)));
  line("getelementptr i8, ptr %ri" + std::to_string(input) + ", i64 " + bytes, "%pi" + std::to_string(input));
}

void Printer::print_walk() {
  const size_t inputs = region_.inputs.size(), outputs = region_.outputs.size();
  std::set<uint64_t> read = inputs_read();
  for (const uint64_t i : std::set(read))
    if (const auto& at = region_.inputs[i].at) read.insert(at->index);
  print_pointer("%apart", "%inputs", inputs);
  const auto print_start = [&](const std::string& name, const std::string& array, size_t i, size_t operand) {
    print_pointer("%first" + name, array, i);
    line("load i64, ptr " +
             line("getelementptr i64, ptr %apart" + std::to_string(inputs) + ", i64 " + std::to_string(operand)),
         "%by" + name + std::to_string(i));
  };
  for (const uint64_t i : read) print_start("i", "%inputs", i, i);
  for (size_t k = 0; k < outputs; ++k) print_start("o", "%outputs", k, inputs + k);
  for (size_t k = 0; k < kept_.size(); ++k) print_pointer("%po", "%outputs", outputs + k);
  body_ += R"(
  %anyrow = icmp slt i64 %begin, %end
  br i1 %anyrow, label %rows, label %norow
norow:
  ret void
rows:
  %row = phi i64 [ %begin, %start ], [ %nextrow, %next ]
)";
  const auto print_row = [&](const std::string& name, size_t i, const std::string& result) {
    const std::string number = name + std::to_string(i);
    line("getelementptr i8, ptr %first" + number + ", i64 " + line("mul i64 %row, %by" + number),
         result + std::to_string(i));
  };
  for (const uint64_t i : read) print_row("i", i, region_.inputs[i].at ? "%ri" : "%pi");
  for (size_t k = 0; k < outputs; ++k) print_row("o", k, "%po");
  for (const uint64_t i : read)
    if (region_.inputs[i].at) print_row_at(i);
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (!live_[id] || !once_[id]) continue;
    if (region_.is_repeated(n)) load_for_all(n.type, "%pi" + std::to_string(n.bits), "%shared" + to_string(id));
    else if (!region_.has_rows()) print_node(id, "0", 0);
  }
  if (region_.has_rows()) print_rows();
  else print_loop();
  body_ += R"(  br label %next
next:
  %nextrow = add i64 %row, 1
  %morerows = icmp slt i64 %nextrow, %end
  br i1 %morerows, label %rows, label %norow
}
)";
}

}  // namespace tower::compiler
