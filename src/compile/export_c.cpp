// Compiled functions as C libraries (tower/export_c.h): a PointerProgram as files.
//
//   newton.h           what a caller has to know: the function, its arguments and results, workspace, what it returns
//   newton.c           the text that runs programs (kernels/by_pointers.h), this one's tables (program_text.h), and the
//                      function
//   newton.f90         an interface for Fortran
//   newton_kernels.o   the machine code of its kernels, as it runs in the process
//   newton.cmake       a library of these
//
// The machine code of another machine's kernels is made for it (library_target.h): the program is the same.
//
// Nothing is generated here but text and tables: what is computed is the program's affair (fuse/pointer_program.h), and
// the machine code the kernels'. Functions as CasADi calls them are made in export_casadi.cpp.
#include "tower/export_c.h"

#include <ATen/TensorGeometry.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "compile/casadi_function.h"
#include "compile/export_casadi.h"
#include "compile/library_target.h"
#include "compile/program_text.h"
#include "compile/specialisations.h"
#include "kernels/checked_file.h"
#include "kernels/template.h"
#include "tower/errors.h"
#include "tower/version.h"

namespace tower {
namespace {

using compiler::Extent;
using compiler::filled;
using compiler::Holes;
using compiler::LibraryFiles;
using compiler::LibraryTarget;
using compiler::OtherFile;
using compiler::PointerProgram;
using compiler::ProgramTables;
using compiler::ProgramText;

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

bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Letters, digits and underscores, a letter first.
bool is_of_names(const std::string& name) {
  return !name.empty() && name[0] != '_' && (name[0] < '0' || name[0] > '9') &&
         std::all_of(name.begin(), name.end(), is_of_name);
}

std::string without_comments(const std::string& text) {
  std::string code;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    const size_t comment = std::min(text.find("//", at), text.find("/*", at));
    code += text.substr(at, comment - at);
    if (comment == std::string::npos) break;
    end = text[comment + 1] == '/' ? text.find('\n', comment) : text.find("*/", comment) + 2;
  }
  return code;
}

// Whether the text that libraries have in common gives this name a meaning: a type, an enumerator, a function of its
// own or of C's. (Its variables are inside of functions.)
bool is_in_text(const std::string& name) {
  static const std::string& text =
      *new std::string(without_comments(compiler::text_that_runs_programs() + compiler::text_of_casadi_calls()) + "\n");
  const bool is_type = std::isupper(static_cast<unsigned char>(name[0])) || name.ends_with("_t") ||
                       (name.size() > 1 && name[0] == 'k' && std::isupper(static_cast<unsigned char>(name[1])));
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += name.size()) {
    const char before = at == 0 ? ' ' : text[at - 1], after = text[at + name.size()];
    if (!is_of_name(before) && !is_of_name(after) && (is_type || after == '(')) return true;
  }
  return false;
}

// Whether a header that the text includes, or a compiler of GNU's C, has a type or a macro of this name.
bool is_in_headers(const std::string& name) {
  static const std::set<std::string_view> names = {"NULL", "linux", "offsetof", "std", "unix"};
  const auto is_of_integers = [&](std::string_view first, std::string_view second) {
    return name.starts_with(first) || name.starts_with(second);
  };
  return names.count(name) > 0 || is_of_integers("INT", "UINT") ||
         (name.ends_with("_t") && is_of_integers("int", "uint"));
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
  if (name.empty()) refuse("it is empty");
  if (!is_of_names(name)) refuse("it has to be letters, digits and underscores, a letter first");
  if (keywords().count(name)) refuse("C or C++ has it for itself");
  if (is_in_library(name)) refuse("C's library has a function of that name");
  if (is_in_headers(name)) refuse("C's headers have it for something else");
  if (is_in_text(name)) refuse("the text of libraries has it for itself");
}

// ---- text ----

// Of a name in Fortran, with what is added to the function's.
constexpr size_t kLongestInFortran = 63 - std::string_view("_work_bytes").size();

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

class Library {
 public:
  Library(const PointerProgram& program, const std::string& name, const ExportOptions& options,
          const LibraryTarget& target)
      : program_(program),
        name_(name),
        target_(target),
        text_(program, name, options, target),
        tables_(program.tables()),
        options_(options) {
    compiler::check_names(options.argument_names, program.arguments().size(), "argument");
    compiler::check_names(options.result_names, program.results().size(), "result");
  }

  LibraryFiles files() const {
    return {header(),
            source(),
            compiler::object_file(text_.code(), target_.machine()),
            compiler::cmake_text(name_, "STATIC"),
            name_.size() <= kLongestInFortran ? fortran() : "",
            text_.others()};
  }

 private:
  std::string header() const;
  std::string source() const;
  std::string fortran() const;
  std::string arguments_text() const;
  std::string number_of_arguments() const {
    return std::to_string(program_.arguments().size() + text_.captured().size());
  }

  const PointerProgram& program_;
  const std::string name_;
  const LibraryTarget& target_;
  const ProgramText text_;
  const ProgramTables& tables_;
  const ExportOptions& options_;
};

// "x[1] load  double [n, 3], row by row".
std::string place_text(char list, size_t k, const std::vector<std::string>& names) {
  const std::string name = k < names.size() ? " " + names[k] : "";
  return std::string(" *   ") + list + "[" + std::to_string(k) + "]" + name + "  ";
}

std::string Library::arguments_text() const {
  std::string text;
  size_t k = 0;
  for (const auto& operand : program_.arguments())
    text += place_text('x', k++, options_.argument_names) + described(operand) + "\n";
  for (const auto& constant : text_.captured()) {
    PointerProgram::Operand operand{constant.tensor.scalar_type(), {}, {}};
    for (const int64_t size : constant.tensor.sizes()) operand.sizes.push_back({size, 0});
    for (const int64_t stride : constant.tensor.strides()) operand.strides.push_back({stride, 0});
    text += place_text('x', k++, {}) + described(operand) + ": captured by the function\n";
  }
  k = 0;
  for (const auto& operand : program_.results())
    text += place_text('y', k++, options_.result_names) + described(operand) + "\n";
  return text;
}

std::string Library::header() const {
  return filled(
      R"(
/* {name}: a function that Tower {version} compiled, as a C function.
 *
 * Its machine code is for {target}.
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
  {name}_no_memory = 16,      /* for the states of a loop, which made more than {loop_steps} steps */
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
            {"target", target_.text()},
            {"arguments", number_of_arguments()},
            {"results", std::to_string(tables_.results)},
            {"operands", arguments_text()},
            {"type", common_type(program_)},
            {"loop_steps", std::to_string(options_.loop_steps)},
            {"n", tables_.any_number ? "n: how many examples, " + std::to_string(tables_.fewest) + " or more."
                                     : std::string("n: 1. The function is for one number of examples, or has none.")}});
}

std::string Library::source() const {
  return filled(R"(
/* Written by Tower {version} (export_c). {name}.h says what it is; its machine code is {name}_kernels.o. */
#include "{name}.h"

)",
                Holes{{"version", version()}, {"name", name_}}) +
         compiler::text_that_runs_programs() + text_.text() +
         filled(R"(

int64_t {name}_work_bytes(int64_t n) { return work_bytes_for(&{name}_tables, n); }

int {name}(int64_t n, const {type}* const x[], {type}* const y[], void* work)
{
  return run_program(&{name}_tables, n, (const void* const*)x, (void* const*)y, work, 0);
}
)",
                Holes{{"name", name_}, {"type", common_type(program_)}});
}

// A function may have the name of one of its arguments, but not in Fortran, where large letters are small ones, too.
std::string Library::fortran() const {
  static const std::set<std::string> of_arguments = {"n", "x", "y", "work", "fault", "bytes"};
  std::string small = name_;
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return filled(R"(
! {name}: a function that Tower {version} compiled, for Fortran 2003. {name}.h says what its arguments and results are;
! what lies row by row there has its dimensions in the other order here.
module {name}_interface
  use, intrinsic :: iso_c_binding, only: c_int, c_int64_t, c_ptr
  implicit none

  interface
    function {name}(n{of}, x{of}, y{of}, work{of}) &
        bind(c, name="{name}") result(fault{of})
      import :: c_int, c_int64_t, c_ptr
      integer(c_int64_t), value :: n{of}
      type(c_ptr), intent(in) :: x{of}(*), y{of}(*)
      type(c_ptr), value :: work{of}
      integer(c_int) :: fault{of}
    end function

    function {name}_work_bytes(n{of}) &
        bind(c, name="{name}_work_bytes") result(bytes{of})
      import :: c_int64_t
      integer(c_int64_t), value :: n{of}
      integer(c_int64_t) :: bytes{of}
    end function
  end interface
end module
)",
                Holes{{"name", name_}, {"version", version()}, {"of", of_arguments.count(small) ? "_of_call" : ""}});
}

}  // namespace

void compiler::check_names(const std::vector<std::string>& names, size_t count, const char* what) {
  if (!names.empty() && names.size() != count)
    throw ArgumentError("export_c: there are " + std::to_string(names.size()) + " names for " + std::to_string(count) +
                        " " + what + "s.");
  for (const std::string& name : names)
    if (!is_of_names(name) || name.find("__") != std::string::npos)
      throw ArgumentError("export_c: '" + name +
                          "' cannot be a name of arguments and results: "
                          "letters, digits and single underscores, a letter first.");
}

std::string compiler::cmake_text(const std::string& name, const char* kind) {
  return filled(R"(
# The library {name}, for a project that includes this file: target_link_libraries(… {name}). Its language is C.
add_library({name} {kind} "${CMAKE_CURRENT_LIST_DIR}/{name}.c" "${CMAKE_CURRENT_LIST_DIR}/{name}_kernels.o")
set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_STANDARD 99 LINKER_LANGUAGE C)
target_include_directories({name} PUBLIC "${CMAKE_CURRENT_LIST_DIR}")
target_link_libraries({name} PUBLIC m)
)",
                Holes{{"name", name}, {"kind", kind}, {"CMAKE_CURRENT_LIST_DIR", "{CMAKE_CURRENT_LIST_DIR}"}});
}

void detail::export_c(const Specialisations& function, const std::string& name, const ExportOptions& options) {
  check_name(name);
  if (options.loop_steps < 0) throw ArgumentError("export_c: loop_steps cannot be negative.");
  const auto& state = Specialisations::State::of(function);
  const LibraryTarget target(options, state.kernels->source().math());
  const bool frozen = options.captured == ExportOptions::Captured::constants;
  // Captured tensors that become arguments stand before the results.
  const auto program = state.by_pointers("export_c", target.kernels(state.kernels),
                                         {frozen, options.loop_steps, /*numbers_stay=*/frozen});
  const LibraryFiles made = options.abi == CAbi::casadi
                                ? compiler::casadi_library(program, state.kernels, name, options, target)
                                : Library(*program, name, options, target).files();
  std::error_code error;
  const std::filesystem::path folder = options.folder.empty() ? "." : options.folder;
  std::filesystem::create_directories(folder, error);
  const auto write = [&](const std::string& file, const std::string& bytes) {
    const std::string path = (folder / file).string();
    if (const std::string why = compiler::write_file(path, bytes); !why.empty())
      throw ArgumentError("export_c: " + path + " cannot be written: " + why + ".");
  };
  write(name + ".h", made.header);
  write(name + ".c", made.source);
  write(name + "_kernels.o", made.object);
  write(name + ".cmake", made.cmake);
  if (!made.fortran.empty()) write(name + ".f90", made.fortran);
  for (const OtherFile& file : made.others) write(file.name, file.bytes);
}

void dynamic::export_c(const Function& compiled, const std::string& name, const ExportOptions& options) {
  detail::export_c(compiler::specialisations_of(compiled, "export_c"), name, options);
}

}  // namespace tower
