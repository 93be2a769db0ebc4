// Matrix products of tensors as they lie: C = S + A B, where rows, columns and what is summed over are any dimensions
// of the tensors, one or several, and further dimensions count products. LibTorch computes the large ones. It takes
// several times as long as it has to for those of few rows, columns or terms: these are computed here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace tower::compiler {

/// A dimension of the result, or what is summed over: its size, and how far elements are apart. Zero: the tensor does
/// not have it.
struct GemmAxis {
  int64_t size, a, b, s, c;
};

/// A matrix's memory, from the first element on, and how many elements that has. Null: there is no matrix.
struct GemmMemory {
  void* data = nullptr;
  int64_t elements = 0;

  GemmMemory() = default;
  GemmMemory(void* first, int64_t count) : data(first), elements(count) {}
  /// That of a tensor, which may be undefined.
  explicit GemmMemory(const at::Tensor& t);
};

struct Gemm {
  c10::SmallVector<GemmAxis, 6> axes;  // of the result
  GemmAxis inner{1, 0, 0, 0, 0};

  /// What is summed over; false where these dimensions are not walked as one.
  bool sum_over(std::vector<GemmAxis> dimensions);
  /// Of float32 or float64. Without S: C = A B. Throws an UnsupportedError where memory ends before the dimensions do.
  void run(at::ScalarType dtype, const GemmMemory& a, const GemmMemory& b, const GemmMemory& s,
           const GemmMemory& c) const;
  void run(const at::Tensor& a, const at::Tensor& b, const at::Tensor& s, const at::Tensor& c) const {
    GemmMemory written(c);
    written.data = c.mutable_data_ptr();
    run(c.scalar_type(), GemmMemory(a), GemmMemory(b), GemmMemory(s), written);
  }
  /// Whether the result has no elements.
  bool is_empty() const;
  /// Throws an UnsupportedError where memory ends before the dimensions do.
  void check(const GemmMemory& a, const GemmMemory& b, const GemmMemory& s, const GemmMemory& c) const;

 private:
  void check(const char* name, const GemmMemory& memory, int64_t GemmAxis::*step) const;
};

/// A product, and where its matrices are.
struct GemmCall {
  Gemm gemm;
  GemmMemory a, b, s, c;
};

/// Products that read the same matrix, as each by itself. Where they are products with that as the right operand, and
/// not too large, it goes through the caches once for all of them.
void run_with_one_right(at::ScalarType dtype, c10::ArrayRef<GemmCall> calls);

}  // namespace tower::compiler
