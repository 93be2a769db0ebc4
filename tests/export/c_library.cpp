#include "export/c_library.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "compile/kernels.h"
#include "compile/specialisations.h"
#include "fuse/pointer_program.h"
#include "support/prelude.h"

namespace export_tests {
namespace {

constexpr size_t kGuard = 128;  // bytes around memory that nobody is to touch
constexpr int kJunk = 0xa5;

// Memory with an odd start for what asks for no alignment, and guards around it.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : memory_(bytes + 2 * kGuard, static_cast<char>(kJunk)) {}
  char* begin() { return memory_.data() + kGuard; }
  bool is_intact() const {
    const auto is_junk = [](char c) { return c == static_cast<char>(kJunk); };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_junk) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), is_junk);
  }

 private:
  std::vector<char> memory_;
};

size_t bytes_of(const Tensor& t) {
  return at::detail::computeStorageNbytes(t.sizes(), t.strides(), static_cast<size_t>(t.element_size()));
}

// Empty if the bits are the same.
std::string differences(const Tensors& found, const Tensors& expected) {
  if (found.size() != expected.size()) return "another number of results";
  for (size_t k = 0; k < found.size(); ++k) {
    const std::string difference = kernels::bit_difference(found[k].reshape({-1}), expected[k].reshape({-1}), {});
    if (!difference.empty()) return "result " + std::to_string(k) + ": " + difference;
  }
  return "";
}

}  // namespace

bool has_compiler() { return std::system("cc --version > /dev/null 2>&1") == 0; }

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) {
    ADD_FAILURE() << command;
    return text;
  }
  char part[4096];
  while (const size_t read = fread(part, 1, sizeof part, pipe)) text.append(part, read);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
  return text;
}

CLibrary::CLibrary(const Function& compiled, const tower::ExportOptions& given, const std::string& name) {
  tower::ExportOptions options = given;
  options.folder = folder_.path();
  tower::dynamic::export_c(compiled, name, options);
  const std::string base = folder_ / name;
  output_of("cc -std=c99 -pedantic -Wall -Wextra -Werror -O0 -fPIC -shared -Wl,-z,text -o " + base + ".so " + base +
            ".c " + base + "_kernels.o -lm");
  load(base + ".so", name);
}

CLibrary::CLibrary(const std::string& path, const std::string& name) { load(path, name); }

void CLibrary::load(const std::string& path, const std::string& name) {
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    ADD_FAILURE() << dlerror();
    return;
  }
  function_ = reinterpret_cast<decltype(function_)>(dlsym(library_, name.c_str()));
  work_bytes_ = reinterpret_cast<decltype(work_bytes_)>(dlsym(library_, (name + "_work_bytes").c_str()));
}

int CLibrary::number(const std::string& name) const {
  const void* found = library_ ? dlsym(library_, name.c_str()) : nullptr;
  return found ? *static_cast<const int*>(found) : -1;
}

CLibrary::~CLibrary() {
  if (library_) dlclose(library_);
}

int CLibrary::call(int64_t n, const Tensors& arguments, const Tensors& like, Tensors& results) const {
  if (!function_ || !work_bytes_) return -100;
  std::vector<const void*> x;
  for (const Tensor& t : arguments) x.push_back(t.defined() ? t.const_data_ptr() : nullptr);
  std::vector<Guarded> memory;
  std::vector<void*> y;
  for (const Tensor& t : like) memory.emplace_back(bytes_of(t));
  for (Guarded& m : memory) y.push_back(m.begin());
  Guarded work(static_cast<size_t>(work_bytes_(n)) + 1);
  const int returned = function_(n, x.data(), y.data(), work.begin() + 1);
  EXPECT_TRUE(work.is_intact());
  results.clear();
  for (size_t k = 0; k < like.size(); ++k) {
    EXPECT_TRUE(memory[k].is_intact()) << "result " << k;
    const at::TensorOptions options = like[k].options().requires_grad(false);
    results.push_back(at::empty_strided(like[k].sizes(), like[k].strides(), options));
    results.back().copy_(at::from_blob(y[k], like[k].sizes(), like[k].strides(), options));
  }
  return returned;
}

std::string disagreement(const CLibrary& library, const Function& compiled, int64_t n, const Tensors& arguments,
                         const Tensors& captured) {
  Tensors expected = compiled(arguments);
  // A view with gaps comes row by row.
  for (Tensor& t : expected)
    if (!t.is_non_overlapping_and_dense()) t = t.contiguous();
  Tensors all = arguments, results;
  all.insert(all.end(), captured.begin(), captured.end());
  if (const int code = library.call(n, all, expected, results)) return "it returns " + std::to_string(code);
  if (const std::string text = differences(results, expected); !text.empty()) return text;
  // In the process, without tensors.
  if (!captured.empty()) return "";
  const auto program = tower::compiler::specialisations_of(compiled, "test").by_pointers("native");
  std::vector<const void*> x;
  std::vector<void*> y;
  for (const Tensor& t : arguments) x.push_back(t.const_data_ptr());
  for (Tensor& t : results) y.push_back(t.fill_(1).mutable_data_ptr());
  program->run(n, x.data(), y.data());
  const std::string text = differences(results, expected);
  return text.empty() ? "" : "by pointers, " + text;
}

void expect_same(const CLibrary& library, const Function& compiled, int64_t n, const Tensors& arguments,
                 const Tensors& captured) {
  EXPECT_EQ(disagreement(library, compiled, n, arguments, captured), "") << "n = " << n;
}

void expect_exported(const Function& f, const std::function<Tensors(int64_t)>& of,
                     const tower::ExportOptions& options) {
  const Function mapped = [f](const Tensors& x) { return td::vmap(f, Dims(x.size(), 0), {0})(x); };
  const Function compiled = td::compile(mapped);
  for (const int64_t n : {12, 17}) compiled(of(n));
  const CLibrary library(compiled, options);
  for (const int64_t n : {0, 1, 7, 64, 1000}) expect_same(library, compiled, n, of(n));
}

}  // namespace export_tests
