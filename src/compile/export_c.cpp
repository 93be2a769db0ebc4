// Compiled functions as C libraries (tower/export_c.h): a PointerProgram as files.
//
//   newton.h           what a caller has to know: the function, its arguments and results, workspace, what it returns
//   newton.c           the text that runs programs (kernels/by_pointers.h), this one's tables, and the function
//   newton_kernels.o   the machine code of its kernels, as it runs in the process
//   newton.cmake       a library of these
//
// Nothing is generated here but text and tables: what is computed is the program's affair (fuse/pointer_program.h), and
// the machine code the kernels'.
#include "tower/export_c.h"

#include <ATen/TensorGeometry.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "compile/specialisations.h"
#include "fuse/pointer_program.h"
#include "kernels/checked_file.h"
#include "kernels/object_file.h"
#include "kernels/template.h"
#include "tower/errors.h"
#include "tower/version.h"

namespace tower {

namespace compiler {
extern const char* const by_pointers_text;
}

namespace {

using compiler::Binary;
using compiler::Extent;
using compiler::filled;
using compiler::Holes;
using compiler::Kernel;
using compiler::LaneCode;
using compiler::NamedCode;
using compiler::PointerProgram;
using compiler::ProgramPlace;
using compiler::ProgramTables;

// ---- names ----

// Of C and C++: the header is for both.
const std::set<std::string_view>& keywords() {
  static const auto& words = *new std::set<std::string_view>{
      "alignas",       "alignof",     "and",        "and_eq",    "asm",       "auto",         "bitand",
      "bitor",         "bool",        "break",      "case",      "catch",     "char",         "char16_t",
      "char32_t",      "char8_t",     "class",      "co_await",  "co_return", "co_yield",     "compl",
      "concept",       "const",       "const_cast", "consteval", "constexpr", "constinit",    "continue",
      "decltype",      "default",     "delete",     "do",        "double",    "dynamic_cast", "else",
      "enum",          "explicit",    "export",     "extern",    "false",     "float",        "for",
      "friend",        "goto",        "if",         "inline",    "int",       "long",         "main",
      "mutable",       "namespace",   "new",        "noexcept",  "not",       "not_eq",       "nullptr",
      "operator",      "or",          "or_eq",      "private",   "protected", "public",       "register",
      "requires",      "restrict",    "return",     "short",     "signed",    "sizeof",       "static",
      "static_assert", "static_cast", "struct",     "switch",    "template",  "this",         "thread_local",
      "throw",         "true",        "try",        "typedef",   "typeid",    "typename",     "typeof",
      "typeof_unqual", "union",       "unsigned",   "using",     "virtual",   "void",         "volatile",
      "wchar_t",       "while",       "xor",        "xor_eq"};
  return words;
}

// Whether C's library has a function of this name.
bool is_in_library(const std::string& name) {
  for (const char* library : {"libc.so.6", "libm.so.6"})
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
      const bool found = dlsym(handle, name.c_str()) != nullptr;
      dlclose(handle);
      if (found) return true;
    }
  return false;
}

void check_name(const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    throw ArgumentError("export_c: '" + name + "' cannot be the name of a C function: " + why + ".");
  };
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto is_of_name = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty()) refuse("it is empty");
  if (!is_letter(name[0]) || !std::all_of(name.begin(), name.end(), is_of_name))
    refuse("it has to be letters, digits and underscores, a letter first");
  if (keywords().count(name)) refuse("C or C++ has it for itself");
  if (is_in_library(name)) refuse("C's library has a function of that name");
}

// ---- text ----

const char* c_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "double";
    case at::kFloat:
      return "float";
    case at::kLong:
      return "int64_t";
    case at::kInt:
      return "int32_t";
    case at::kBool:
      return "uint8_t";
    default:
      return "uint16_t";  // half types, by their bits
  }
}

std::string in_terms_of_n(Extent extent) {
  if (extent.each == 0) return std::to_string(extent.fixed);
  const std::string each = (extent.each == 1 ? "" : std::to_string(extent.each) + " ") + "n";
  return extent.fixed == 0 ? each : std::to_string(extent.fixed) + " + " + each;
}

std::string list_of(const std::vector<Extent>& extents) {
  std::string text;
  for (const Extent extent : extents) text += (text.empty() ? "" : ", ") + in_terms_of_n(extent);
  return "[" + text + "]";
}

bool lies_row_by_row(const PointerProgram::Operand& operand) {
  // For no number of examples would it be otherwise if it is so for one that is no other size.
  constexpr int64_t kSome = 1009;
  const auto of_some = [](const std::vector<Extent>& extents) {
    std::vector<int64_t> numbers;
    for (const Extent extent : extents) numbers.push_back(extent_for(extent, kSome));
    return numbers;
  };
  return at::geometry_is_contiguous(of_some(operand.sizes), of_some(operand.strides));
}

std::string described(const PointerProgram::Operand& operand) {
  if (operand.dtype == at::ScalarType::Undefined) return "not read, may be null";
  std::string text = c_type(operand.dtype);
  if (operand.dtype == at::kBool) text += ", 0 or 1";
  if (operand.dtype == at::kHalf) text += ", the bits of a float16";
  if (operand.dtype == at::kBFloat16) text += ", the bits of a bfloat16";
  text += " " + list_of(operand.sizes);
  return text +
         (lies_row_by_row(operand) ? ", row by row" : ", elements apart by dimension: " + list_of(operand.strides));
}

// What the pointers are to, if all are to one type.
std::string common_type(const PointerProgram& program) {
  std::set<std::string> types;
  for (const auto* operands : {&program.arguments(), &program.results()})
    for (const auto& operand : *operands)
      if (operand.dtype != at::ScalarType::Undefined) types.insert(c_type(operand.dtype));
  return types.size() == 1 ? *types.begin() : "void";
}

std::string text_of(Extent extent) {
  return "{" + std::to_string(extent.fixed) + ", " + std::to_string(extent.each) + "}";
}

// Elements of a table, a few on a line.
template <class T, class F>
std::string rows_of(const T& elements, F text, const char* none = "0") {
  std::string rows, row;
  for (const auto& element : elements) {
    const std::string next = text(element);
    if (row.size() + next.size() > 110) rows += "\n   " + std::exchange(row, "");
    row += " " + next + ",";
  }
  return rows + "\n   " + (elements.empty() ? std::string(" ") + none : row) + "\n";
}

class Library {
 public:
  Library(const PointerProgram& program, const std::string& name, const ExportOptions& options)
      : program_(program), name_(name), options_(options), tables_(program.tables()) {
    for (const auto& kernel : program.kernels())
      if (kernel && std::find(kernels_.begin(), kernels_.end(), kernel.get()) == kernels_.end())
        kernels_.push_back(kernel.get());
    for (const Kernel* kernel : kernels_) {
      code_.push_back({name_ + "_kernel" + std::to_string(code_.size()), kernel->code().binary()});
      check_imports(code_.back().binary);
    }
    for (const auto& constant : program.constants()) number_of_captured_ += is_argument(constant);
  }

  std::string object() const { return object_file(code_); }
  std::string header() const;
  std::string source() const;
  std::string cmake() const;

 private:
  bool is_argument(const PointerProgram::Constant& constant) const {
    return constant.captured && options_.captured == ExportOptions::Captured::arguments;
  }

  void check_imports(const Binary& binary) {
    for (const Binary::Import& import : binary.imports) {
      if (import.name.rfind("Sleef_", 0) != 0) continue;
      needs_sleef_ = true;
      if (options_.functions == ExportOptions::Functions::none)
        throw UnsupportedError(
            "export_c: a kernel calls " + import.name +
            ", a function of Sleef, which LibTorch has inside and another program has not. "
            "ExportOptions::Functions::sleef leaves such functions to be linked with Sleef (-lsleef).");
    }
  }

  std::string arguments_text() const;
  std::string constants_text() const;
  size_t number_of(const Kernel* kernel) const {
    return static_cast<size_t>(std::find(kernels_.begin(), kernels_.end(), kernel) - kernels_.begin());
  }
  // A memory's number, where captured tensors are arguments.
  int64_t memory(int64_t number) const;

  const PointerProgram& program_;
  const std::string name_;
  const ExportOptions& options_;
  const ProgramTables& tables_;
  std::vector<const Kernel*> kernels_;
  std::vector<NamedCode> code_;
  int64_t number_of_captured_ = 0;
  bool needs_sleef_ = false;
};

// Arguments, captured tensors that are arguments, results, constants, what is made.
int64_t Library::memory(int64_t number) const {
  const int64_t first_constant = tables_.arguments + tables_.results;
  if (number < tables_.arguments) return number;
  if (number < first_constant) return number + number_of_captured_;
  if (number >= first_constant + tables_.constants) return number;
  int64_t captured = 0, others = 0;
  for (int64_t k = 0; k < number - first_constant; ++k)
    (is_argument(program_.constants()[static_cast<size_t>(k)]) ? captured : others) += 1;
  return is_argument(program_.constants()[static_cast<size_t>(number - first_constant)])
             ? tables_.arguments + captured
             : first_constant + number_of_captured_ + others;
}

std::string Library::arguments_text() const {
  std::string text;
  size_t k = 0;
  for (const auto& operand : program_.arguments())
    text += " *   x[" + std::to_string(k++) + "]  " + described(operand) + "\n";
  for (const auto& constant : program_.constants()) {
    if (!is_argument(constant)) continue;
    PointerProgram::Operand operand{constant.tensor.scalar_type(), {}, {}};
    for (const int64_t size : constant.tensor.sizes()) operand.sizes.push_back({size, 0});
    for (const int64_t stride : constant.tensor.strides()) operand.strides.push_back({stride, 0});
    text += " *   x[" + std::to_string(k++) + "]  " + described(operand) + ": captured by the function\n";
  }
  k = 0;
  for (const auto& operand : program_.results())
    text += " *   y[" + std::to_string(k++) + "]  " + described(operand) + "\n";
  return text;
}

std::string Library::header() const {
  const std::string cpu = c10::Join(", ", compiler::Cpu::get().features());
  return filled(
      R"(
/* {name}: a function that Tower {version} compiled, as a C function.
 *
 * Its machine code is for x86-64 with {cpu}.
 */
#ifndef TOWER_EXPORTED_{name}
#define TOWER_EXPORTED_{name}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  {name}_arguments = {arguments},
  {name}_results = {results},
  /* What it returns besides 0, added up. Results are then not complete. */
  {name}_divided_by_zero = 1, /* an integer, by zero */
  {name}_not_ended = 2,       /* a loop reached its bound */
  {name}_singular = 4,        /* a matrix cannot be factored */
  {name}_out_of_range = 8,    /* an index */
  {name}_wrong_n = -1         /* there cannot be so many examples: nothing was written */
};

/* Reads the arguments at x and writes the results at y:
 *
{operands} *
 * {n}
 * work: {name}_work_bytes(n) bytes, anywhere, which hold nothing before and after. Results may be in no memory that is
 * read. Several threads may call it at once, with a workspace each. Nothing is allocated.
 */
int {name}(int64_t n, const {type}* const x[], {type}* const y[], void* work);

/* Bytes of the workspace for n examples. */
int64_t {name}_work_bytes(int64_t n);

#ifdef __cplusplus
}
#endif

#endif
)",
      Holes{{"name", name_},
            {"version", version()},
            {"cpu", cpu.empty() ? "no extensions" : cpu},
            {"arguments", std::to_string(tables_.arguments + number_of_captured_)},
            {"results", std::to_string(tables_.results)},
            {"operands", arguments_text()},
            {"type", common_type(program_)},
            {"n", tables_.any_number ? "n: how many examples, " + std::to_string(tables_.fewest) + " or more."
                                     : std::string("n: 1. The function is for one number of examples, or has none.")}});
}

template <class T>
std::string elements_text(const at::Tensor& t, size_t bytes, const char* type, const std::string& name) {
  std::vector<T> elements(bytes / sizeof(T));
  std::memcpy(elements.data(), t.const_data_ptr(), elements.size() * sizeof(T));
  return std::string("static const ") + type + " " + name + "[] = {" +
         rows_of(elements, [](T bits) { return std::to_string(bits) + "u"; }) + "};\n";
}

// By their bits.
std::string Library::constants_text() const {
  std::string text, list;
  size_t k = 0;
  for (const auto& [t, captured] : program_.constants()) {
    if (is_argument({t, captured})) continue;
    const std::string name = "constant" + std::to_string(k++);
    const size_t bytes = compiler::MemoryKernel::Result{Sizes(t.sizes()), Sizes(t.strides()), t.scalar_type()}.bytes();
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
  return text + "static const void* const constants[] = {" + (list.empty() ? " 0" : list) + " };\n";
}

std::string Library::source() const {
  std::string text(compiler::by_pointers_text);
  // That is for headers.
  if (const size_t once = text.find("#pragma once\n"); once != std::string::npos) text.erase(once, 13);

  std::string kernels, steps;
  for (size_t k = 0; k < kernels_.size(); ++k) {
    const LaneCode& code = kernels_[k]->lane_code();
    const std::vector<uint8_t> bytes(code.bytes, code.bytes + code.inputs + code.outputs);
    kernels += filled(R"(
LaneFunction {function};
static const uint8_t bytes{k}[] = {{bytes}};
static const LaneCode code{k} = {{function}, {vector}, {inputs}, {outputs}, bytes{k}};
)",
                      Holes{{"function", code_[k].name},
                            {"k", std::to_string(k)},
                            {"bytes", rows_of(bytes, [](uint8_t b) { return std::to_string(b); })},
                            {"vector", std::to_string(code.vector)},
                            {"inputs", std::to_string(code.inputs)},
                            {"outputs", std::to_string(code.outputs)}});
  }
  std::vector<ProgramPlace> places;
  for (int64_t s = 0; s < tables_.steps; ++s) {
    const auto& step = tables_.step[s];
    const std::string code =
        step.code ? "&code" + std::to_string(number_of(program_.kernels()[static_cast<size_t>(s)].get())) : "0";
    steps += "  {" + code + ", " + std::to_string(step.bytes) + ", " + text_of(step.lanes) + ", places + " +
             std::to_string(places.size()) + "},\n";
    const int64_t count = step.code ? step.code->inputs + step.code->outputs : 2;
    places.insert(places.end(), step.places, step.places + count);
  }
  const auto text_of_place = [&](const ProgramPlace& place) {
    return "{" + std::to_string(memory(place.memory)) + ", " + text_of(place.offset) + ", " + text_of(place.stride) +
           "}";
  };
  const std::vector<Extent> made(tables_.made, tables_.made + program_.made());
  return filled(R"(
/* Written by Tower {version} (tower::export_c). {name}.h says what it is; its machine code is {name}_kernels.o. */
#include "{name}.h"

)",
                Holes{{"version", version()}, {"name", name_}}) +
         text +
         filled(R"(

/* ---- {name} ---- */

{kernels}
{constants}
static const Extent made[] = {{made}};

static const ProgramPlace places[] = {{places}};

static const ProgramStep steps[] = {
{steps}};

static const ProgramTables tables = {
  {arguments}, {results}, {number_of_constants}, {number_of_steps}, constants, made, steps,
  {most_inputs}, {most_outputs}, {memories}, {column_bytes}, {work}, {fewest}, {any_number}
};

int64_t {name}_work_bytes(int64_t n) { return work_bytes_for(&tables, n); }

int {name}(int64_t n, const {type}* const x[], {type}* const y[], void* work)
{
  return run_tables(&tables, n, (const void* const*)x, (void* const*)y, work);
}
)",
                Holes{{"name", name_},
                      {"kernels", kernels},
                      {"constants", constants_text()},
                      {"made", rows_of(made, text_of, "{0, 0}")},
                      {"places", rows_of(places, text_of_place, "{0, {0, 0}, {0, 0}}")},
                      {"steps", steps.empty() ? "  {0, 0, {0, 0}, places}\n" : steps},
                      {"arguments", std::to_string(tables_.arguments + number_of_captured_)},
                      {"results", std::to_string(tables_.results)},
                      {"number_of_constants", std::to_string(tables_.constants - number_of_captured_)},
                      {"number_of_steps", std::to_string(tables_.steps)},
                      {"most_inputs", std::to_string(tables_.most_inputs)},
                      {"most_outputs", std::to_string(tables_.most_outputs)},
                      {"memories", std::to_string(tables_.memories)},
                      {"column_bytes", std::to_string(tables_.column_bytes)},
                      {"work", text_of(tables_.work)},
                      {"fewest", std::to_string(tables_.fewest)},
                      {"any_number", std::to_string(tables_.any_number)},
                      {"type", common_type(program_)}});
}

std::string Library::cmake() const {
  return filled(R"(
# The library {name}, for a project that includes this file: target_link_libraries(… {name}). Its language is C.
add_library({name} STATIC "${CMAKE_CURRENT_LIST_DIR}/{name}.c" "${CMAKE_CURRENT_LIST_DIR}/{name}_kernels.o")
set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_STANDARD 99 LINKER_LANGUAGE C)
target_include_directories({name} PUBLIC "${CMAKE_CURRENT_LIST_DIR}")
target_link_libraries({name} PUBLIC{libraries})
)",
                Holes{{"name", name_},
                      {"libraries", needs_sleef_ ? " sleef m" : " m"},
                      {"CMAKE_CURRENT_LIST_DIR", "{CMAKE_CURRENT_LIST_DIR}"}});
}

}  // namespace

void detail::export_c(const Specialisations& function, const std::string& name, const ExportOptions& options) {
  check_name(name);
  const auto program =
      function.by_pointers("export_c", /*frozen=*/options.captured == ExportOptions::Captured::constants);
  const Library library(*program, name, options);
  std::error_code error;
  const std::filesystem::path folder = options.folder.empty() ? "." : options.folder;
  std::filesystem::create_directories(folder, error);
  const std::array<std::pair<const char*, std::string>, 4> files = {{{".h", library.header()},
                                                                     {".c", library.source()},
                                                                     {"_kernels.o", library.object()},
                                                                     {".cmake", library.cmake()}}};
  for (const auto& [end, bytes] : files) {
    const std::string path = (folder / (name + end)).string();
    if (const std::string why = compiler::write_file(path, bytes); !why.empty())
      throw ArgumentError("export_c: " + path + " cannot be written: " + why + ".");
  }
}

void dynamic::export_c(const Function& compiled, const std::string& name, const ExportOptions& options) {
  detail::export_c(compiler::specialisations_of(compiled, "export_c"), name, options);
}

}  // namespace tower
