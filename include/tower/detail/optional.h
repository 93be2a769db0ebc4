// Behind tower/function.h and tower/exported.h: which types are std::optional.
#pragma once

#include <optional>

namespace tower::detail {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

}  // namespace tower::detail
