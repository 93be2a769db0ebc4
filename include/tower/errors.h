// What Tower throws. Every message starts with the transform and level it comes from (where there is one), names the
// operator and the argument, says what was found and what to do. After any exception the thread's transform stack is
// as it was before the call.
//
//   try { tower::vmap(f)(x); } catch (const tower::RandomnessError& e) { ... }
#pragma once

#include <stdexcept>
#include <string>

namespace tower {

/// Base of every exception that Tower itself raises. (Errors of LibTorch's kernels stay c10::Error.)
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument of a transform is wrong: in_dims, mapped sizes, tangents or cotangents that do not fit, …
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// A derivative was asked for where there is none: integer values, a non-scalar loss, an operator without a formula.
class DerivativeError : public Error {
 public:
  using Error::Error;
};

/// An operator cannot run under a transform: no rule, a result whose shape depends on data, `.item()` of a batch, …
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// An in-place write that cannot be done right, such as a batched value into a tensor captured from outside.
class MutationError : public Error {
 public:
  using Error::Error;
};

/// A random operator under `vmap` whose randomness mode is `Randomness::error`.
class RandomnessError : public Error {
 public:
  using Error::Error;
};

/// A tensor of a transform was used after the transform had ended, or on another thread.
class EscapedTensorError : public Error {
 public:
  using Error::Error;
};

/// A pullback that frees its tape as it runs was called a second time.
class ConsumedError : public Error {
 public:
  using Error::Error;
};

}  // namespace tower
