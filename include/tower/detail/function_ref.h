// A function object by reference, without its type.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace tower::detail {

template <class Signature>
class FunctionRef;

/// Calls a function object that lies elsewhere and outlives this. std::ref in a std::function does the same; for that
/// the compiler makes a copier, a destructor and type information of each lambda, a tenth of a user's file.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class F>
  static FunctionRef to(F& f) {
    return FunctionRef(const_cast<void*>(static_cast<const void*>(std::addressof(f))),
                       [](void* object, Args... args) -> Result {
                         // Of every function it would be some more templates for the compiler.
                         if constexpr (std::is_member_pointer_v<F>) {
                           return std::invoke(*static_cast<F*>(object), std::forward<Args>(args)...);
                         } else {
                           return (*static_cast<F*>(object))(std::forward<Args>(args)...);
                         }
                       });
  }

  /// None: it is not called.
  FunctionRef() = default;

  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  FunctionRef(void* object, Result (*call)(void*, Args...)) : object_(object), call_(call) {}

  void* object_ = nullptr;
  Result (*call_)(void*, Args...) = nullptr;
};

}  // namespace tower::detail
