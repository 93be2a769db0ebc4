#include "export/c_program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "compile/kernels.h"
#include "compile/program_text.h"
#include "export/c_library.h"

namespace export_tests {
namespace {

namespace compiler = tower::compiler;

size_t bytes_in_memory(const Tensor& t) {
  return at::detail::computeStorageNbytes(t.sizes(), t.strides(), static_cast<size_t>(t.element_size()));
}

// Memory of each argument and result is as large as it has to be, so that a tool sees what is read or written behind
// it.
constexpr const char* kMain = R"(
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
  size_t s;
  for (s = 0; s < sizeof samples / sizeof *samples; ++s) {
    const int64_t arguments = samples[s].tables->arguments, all = arguments + samples[s].tables->results;
    char** memory = malloc((size_t)(all + 1) * sizeof *memory);
    void* work = malloc((size_t)work_bytes_for(samples[s].tables, 1));
    int64_t k;
    int failed;
    for (k = 0; k < all; ++k) {
      const size_t bytes = samples[s].bytes[k];
      memory[k] = malloc(bytes);
      if (k < arguments && fread(memory[k], 1, bytes, stdin) != bytes) return 1;
      if (k >= arguments) memset(memory[k], 7, bytes);
    }
    failed = run_program(samples[s].tables, 1, (const void* const*)memory, (void* const*)(memory + arguments), work, 0);
    fwrite(&failed, sizeof failed, 1, stdout);
    for (k = arguments; k < all; ++k) fwrite(memory[k], 1, samples[s].bytes[k], stdout);
    for (k = 0; k < all; ++k) free(memory[k]);
    free(memory);
    free(work);
  }
  return 0;
}
)";

}  // namespace

Tensors run_by_pointers(const compiler::PointerProgram& program, const Tensors& args) {
  std::vector<const void*> x;
  for (const Tensor& t : args) x.push_back(t.const_data_ptr());
  Tensors results;
  std::vector<void*> y;
  for (const auto& operand : program.results()) {
    std::vector<int64_t> sizes, strides;
    for (const compiler::Extent size : operand.sizes) sizes.push_back(compiler::extent_for(size, 1));
    for (const compiler::Extent stride : operand.strides) strides.push_back(compiler::extent_for(stride, 1));
    results.push_back(at::empty_strided(sizes, strides, at::dtype(operand.dtype)));
    y.push_back(results.back().mutable_data_ptr());
  }
  program.run(1, x.data(), y.data());
  return results;
}

CProgram::CProgram(const tower::ExportOptions& options) : options_(options), target_(options_, tower::Math::strict) {}

void CProgram::add(const std::shared_ptr<const compiler::PointerProgram>& program, const Tensors& args,
                   const Tensors& expected, const std::string& what) {
  const std::string name = "program" + std::to_string(samples_.size());
  const compiler::ProgramText text(*program, name, options_, target_);
  programs_ += text.text();
  code_.insert(code_.end(), text.code().begin(), text.code().end());
  table_ += "  {&" + name + "_tables, bytes + " + std::to_string(sizes_) + "},\n";
  for (const auto* tensors : {&args, &expected})
    for (const Tensor& t : *tensors) {
      bytes_ += std::to_string(bytes_in_memory(t)) + (++sizes_ % 20 == 0 ? ",\n" : ", ");
      if (tensors == &args) input_.append(static_cast<const char*>(t.const_data_ptr()), bytes_in_memory(t));
    }
  samples_.push_back({what, expected});
}

std::string CProgram::disagreements(const std::string& runner) const {
  const support::Folder folder;
  std::ofstream(folder / "main.c") << compiler::text_that_runs_programs() << programs_
                                   << "\nstatic const size_t bytes[] = {" << bytes_ << "0};\n"
                                   << "static const struct { const ProgramTables* tables; const size_t* bytes; } "
                                   << "samples[] = {\n"
                                   << table_ << "};\n"
                                   << kMain;
  std::ofstream(folder / "kernels.o", std::ios::binary) << compiler::object_file(code_, target_.machine());
  std::ofstream(folder / "input", std::ios::binary) << input_;
  const std::string in = "cd " + folder.path() + " && ";
  output_of(in + "cc -std=c99 -w -o program main.c kernels.o -lm");
  const std::string libraries = output_of(in + "ldd ./program");
  for (const char* strange : {"torch", "c10", "tower", "LLVM", "stdc++"})
    EXPECT_EQ(libraries.find(strange), std::string::npos) << libraries;
  EXPECT_EQ(output_of("{ " + in + runner + "./program < input > output; } 2>&1"), "");

  std::ifstream file(folder / "output", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {}), differences;
  size_t at = 0;
  for (const Sample& sample : samples_) {
    int failed = -1;
    if (at + sizeof failed > bytes.size()) return differences + sample.what + ": the program ended before\n";
    std::memcpy(&failed, bytes.data() + at, sizeof failed);
    at += sizeof failed;
    if (failed != 0) differences += sample.what + ": it returns " + std::to_string(failed) + "\n";
    for (const Tensor& t : sample.expected) {
      const size_t size = bytes_in_memory(t);
      if (at + size > bytes.size()) return differences + sample.what + ": the program ended before\n";
      // In memory of its own, which is aligned.
      const Tensor found = at::empty_strided(t.sizes(), t.strides(), t.options());
      std::memcpy(found.mutable_data_ptr(), bytes.data() + at, size);
      at += size;
      const std::string text = kernels::bit_difference(found.reshape({-1}), t.reshape({-1}), {});
      if (!text.empty()) differences += sample.what + ": " + text + "\n";
    }
  }
  return differences;
}

}  // namespace export_tests
