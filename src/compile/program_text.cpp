#include "compile/program_text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/template.h"
#include "tower/errors.h"

namespace tower::compiler {

extern const char* const by_pointers_text;

namespace {

std::string text_of(Extent extent) {
  return "{" + std::to_string(extent.fixed) + ", " + std::to_string(extent.each) + "}";
}

// How many inputs and outputs a step has, and how many places, kept memory included.
int64_t operands_of(const ProgramStep& step) {
  if (step.code) return step.code->inputs + step.code->outputs;
  return step.kind == kStepOfZeros ? 1 : 2;
}
int64_t places_of(const ProgramStep& step) { return operands_of(step) + (step.code ? step.code->kept : 0); }

// A table, if there is anything in it.
template <class T, class F>
std::string table_of(const std::string& name, const T& elements, F text) {
  return elements.empty() ? "" : "static const " + name + "[] = {" + rows_of(elements, text) + "};\n\n";
}

}  // namespace

std::string text_that_runs_programs() { return by_pointers_text; }

ProgramText::ProgramText(const PointerProgram& program, std::string name, const ExportOptions& options,
                         const LibraryTarget& target)
    : program_(program), name_(std::move(name)), options_(options), tables_(program.tables()) {
  for (const auto& kernel : program.kernels())
    if (kernel && std::find(kernels_.begin(), kernels_.end(), kernel.get()) == kernels_.end())
      kernels_.push_back(kernel.get());
  for (const Kernel* kernel : kernels_) {
    code_.push_back({name_ + "_kernel" + std::to_string(code_.size()), kernel->binary()});
    for (OtherFile& file : target.others(code_.back().name, *kernel)) others_.push_back(std::move(file));
  }
  for (const auto& constant : program.constants())
    if (is_argument(constant)) captured_.push_back(constant);
}

size_t ProgramText::number_of(const Kernel* kernel) const {
  return static_cast<size_t>(std::find(kernels_.begin(), kernels_.end(), kernel) - kernels_.begin());
}

// Arguments, captured tensors that are arguments, results, constants, what is made.
int64_t ProgramText::memory(int64_t number) const {
  const auto captured_count = static_cast<int64_t>(captured_.size());
  const int64_t first_constant = tables_.arguments + tables_.results;
  if (number < tables_.arguments) return number;
  if (number < first_constant) return number + captured_count;
  if (number >= first_constant + tables_.constants) return number;
  int64_t captured = 0, others = 0;
  for (int64_t k = 0; k < number - first_constant; ++k)
    (is_argument(program_.constants()[static_cast<size_t>(k)]) ? captured : others) += 1;
  return is_argument(program_.constants()[static_cast<size_t>(number - first_constant)])
             ? tables_.arguments + captured
             : first_constant + captured_count + others;
}

template <class T>
std::string elements_text(const at::Tensor& t, size_t bytes, const char* type, const std::string& name) {
  std::vector<T> elements(bytes / sizeof(T));
  std::memcpy(elements.data(), t.const_data_ptr(), elements.size() * sizeof(T));
  return std::string("static const ") + type + " " + name + "[] = {" +
         rows_of(elements, [](T bits) { return std::to_string(bits) + "u"; }) + "};\n";
}

// By their bits.
std::string ProgramText::constants_text() const {
  std::string text, list;
  size_t k = 0;
  for (const auto& [t, captured] : program_.constants()) {
    if (is_argument({t, captured})) continue;
    const std::string name = name_ + "_constant" + std::to_string(k++);
    const size_t bytes = MemoryKernel::Result{Sizes(t.sizes()), Sizes(t.strides()), t.scalar_type()}.bytes();
    switch (t.element_size()) {
      case 8:
        text += elements_text<uint64_t>(t, bytes, "uint64_t", name);
        break;
      case 4:
        text += elements_text<uint32_t>(t, bytes, "uint32_t", name);
        break;
      case 2:
        text += elements_text<uint16_t>(t, bytes, "uint16_t", name);
        break;
      default:
        text += elements_text<uint8_t>(t, bytes, "uint8_t", name);
    }
    list += " " + name + ",";
  }
  return text + "static const void* const " + name_ + "_constants[] = {" + (list.empty() ? " 0" : list) + " };\n";
}

std::string ProgramText::kernels_text() const {
  std::string kernels;
  for (size_t k = 0; k < kernels_.size(); ++k) {
    const LaneCode& code = kernels_[k]->lane_code();
    const std::vector<LaneElement> elements(code.elements, code.elements + code.inputs + code.outputs);
    const auto text_of_element = [](const LaneElement& e) {
      return "{" + std::to_string(e.bytes) + ", " + std::to_string(e.apart) + ", " + std::to_string(e.added) + "}";
    };
    kernels += filled(R"(
LaneFunction {function};
static const LaneElement {name}_elements{k}[] = {{elements}};
static const LaneCode {name}_code{k} = {
  {function}, {vector}, {inputs}, {outputs}, {name}_elements{k}, {whole_rows}, {numbered}, {kept}, {loops}, {walked}
};
)",
                      Holes{{"function", code_[k].name},
                            {"name", name_},
                            {"k", std::to_string(k)},
                            {"elements", rows_of(elements, text_of_element, "{0, 0, 0}")},
                            {"vector", std::to_string(code.vector)},
                            {"inputs", std::to_string(code.inputs)},
                            {"outputs", std::to_string(code.outputs)},
                            {"whole_rows", std::to_string(code.whole_rows)},
                            {"numbered", std::to_string(code.numbered)},
                            {"kept", std::to_string(code.kept)},
                            {"loops", std::to_string(code.loops)},
                            {"walked", std::to_string(code.walked)}});
  }
  return kernels;
}

std::string ProgramText::text() const {
  std::string steps;
  std::vector<ProgramPlace> places;
  std::vector<ProgramPointer> pointers;
  std::vector<Extent> extents;
  for (int64_t s = 0; s < tables_.steps; ++s) {
    const auto& step = tables_.step[s];
    const std::string code =
        step.code ? "&" + name_ + "_code" + std::to_string(number_of(program_.kernels()[static_cast<size_t>(s)].get()))
                  : "0";
    steps += "  {" + std::to_string(step.kind) + ", " + code + ", " + std::to_string(step.bytes) + ", " +
             text_of(step.lanes);
    // The next part of a table, of which a step has so many elements.
    const auto add = [&](const char* table_name, auto& table, const auto* first, int64_t elements) {
      steps += elements == 0 ? ", 0" : ", " + name_ + "_" + table_name + " + " + std::to_string(table.size());
      table.insert(table.end(), first, first + elements);
    };
    const bool is_of_pointers = step.kind == kStepOfPointers;
    add("places", places, step.places, is_of_pointers ? 0 : places_of(step));
    add("pointers", pointers, step.pointers, is_of_pointers ? places_of(step) : 0);
    steps += ", " + std::to_string(step.dims);
    add("extents", extents, step.sizes, step.dims);
    add("extents", extents, step.strides, operands_of(step) * step.dims);
    steps += ", " + std::to_string(step.tasks) + ", " + std::to_string(step.systems) + "},\n";
  }
  const auto text_of_place = [&](const ProgramPlace& place) {
    return "{" + std::to_string(memory(place.memory)) + ", " + text_of(place.offset) + ", " + text_of(place.stride) +
           "}";
  };
  const auto text_of_pointer = [&](const ProgramPointer& pointer) {
    return "{" + std::to_string(memory(pointer.memory)) + ", " + std::to_string(pointer.offset) + "}";
  };
  const std::vector<Extent> made(tables_.made, tables_.made + program_.made());
  return filled(
      R"(

/* ---- {name} ---- */

{kernels}
{constants}
static const Extent {name}_made[] = {{made}};

{places}{pointers}{extents}static const ProgramStep {name}_steps[] = {
{steps}};

static const ProgramTables {name}_tables = {
  {arguments}, {results}, {number_of_constants}, {number_of_steps}, {name}_constants, {name}_made, {name}_steps,
  {most_inputs}, {most_outputs}, {most_loops}, {most_numbers}, {memories}, {column_bytes}, {loop_bytes},
  {work}, {fewest}, {any_number}
};
)",
      Holes{{"name", name_},
            {"kernels", kernels_text()},
            {"constants", constants_text()},
            {"made", rows_of(made, text_of, "{0, 0}")},
            {"places", table_of("ProgramPlace " + name_ + "_places", places, text_of_place)},
            {"pointers", table_of("ProgramPointer " + name_ + "_pointers", pointers, text_of_pointer)},
            {"extents", table_of("Extent " + name_ + "_extents", extents, text_of)},
            {"steps", steps.empty() ? "  {0, 0, 0, {0, 0}, 0, 0, 0, 0, 0, 0, 0}\n" : steps},
            {"arguments", std::to_string(tables_.arguments + static_cast<int64_t>(captured_.size()))},
            {"results", std::to_string(tables_.results)},
            {"number_of_constants", std::to_string(tables_.constants - static_cast<int64_t>(captured_.size()))},
            {"number_of_steps", std::to_string(tables_.steps)},
            {"most_inputs", std::to_string(tables_.most_inputs)},
            {"most_outputs", std::to_string(tables_.most_outputs)},
            {"most_loops", std::to_string(tables_.most_loops)},
            {"most_numbers", std::to_string(tables_.most_numbers)},
            {"memories", std::to_string(tables_.memories)},
            {"column_bytes", std::to_string(tables_.column_bytes)},
            {"loop_bytes", std::to_string(tables_.loop_bytes)},
            {"work", text_of(tables_.work)},
            {"fewest", std::to_string(tables_.fewest)},
            {"any_number", std::to_string(tables_.any_number)}});
}

}  // namespace tower::compiler
