// A compiled function by pointers: the same kernels on memory that the caller names, without tensors.
//
//   const auto step = tower::compile(tower::vmap(correct));
//   step(x, load);                                    // traced for 100 examples, …
//   step(more_x, more_load);                          // … and for 200: now any number will do
//   const auto raw = step.native<double, 2>();        // of two arguments, all of double
//   raw(points, {x, load}, {next, jacobian});         // pointers to the first elements
//
// A call makes no tensor, takes no lock and runs on the calling thread alone; it allocates where the thread has not yet
// had a workspace as large (Native::work_bytes). Any number of threads may call one at once.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace tower {

namespace compiler {
class PointerProgram;
}

namespace detail {

/// What calls of a Native come to.
class NativeCall {
 public:
  explicit NativeCall(std::shared_ptr<const compiler::PointerProgram> program) : program_(std::move(program)) {}

  /// Throws ArgumentError where the function has another number of arguments or results, or one of another dtype than
  /// `dtype` (Undefined: of any).
  void check_arguments(std::size_t arguments, at::ScalarType dtype) const;
  void run(std::int64_t n, const void* const* x, void* const* y, std::size_t results) const;
  std::int64_t work_bytes(std::int64_t n) const;

 private:
  std::shared_ptr<const compiler::PointerProgram> program_;
};

}  // namespace detail

/// A compiled function of memory; `Compiled::native` makes one. `T`: of all arguments and results, or void, where these
/// are of different types.
template <class T, std::size_t arguments>
class Native {
 public:
  /// Of the `call` that Compiled::native has. Throws ArgumentError where the function is of other arguments.
  explicit Native(detail::NativeCall call) : call_(std::move(call)) { call_.check_arguments(arguments, dtype()); }

  /// Reads the tensors whose first elements are at `x` and writes the results to `y`, all of them laid out as in the
  /// call that was traced (views with gaps among the results: row by row), for `n` examples (1, where no number of
  /// examples varies). Results may be in no memory that is read. Throws what the compiled function
  /// throws where numbers are at fault (a singular matrix, an index out of range, a division of integers by zero, a
  /// loop that must end), and ArgumentError for a number of examples or of results that there cannot be.
  template <std::size_t results>
  void operator()(std::int64_t n, const std::array<const T*, arguments>& x, T* const (&y)[results]) const {
    std::array<const void*, arguments> from;
    std::array<void*, results> to;
    for (std::size_t k = 0; k < arguments; ++k) from[k] = x[k];
    for (std::size_t k = 0; k < results; ++k) to[k] = y[k];
    call_.run(n, from.data(), to.data(), results);
  }

  /// How much memory a call for `n` examples uses besides, which the calling thread keeps.
  std::int64_t work_bytes(std::int64_t n) const { return call_.work_bytes(n); }

 private:
  static constexpr at::ScalarType dtype() {
    if constexpr (std::is_void_v<T>) return at::ScalarType::Undefined;
    else return c10::CppTypeToScalarType<T>::value;
  }

  detail::NativeCall call_;
};

}  // namespace tower
