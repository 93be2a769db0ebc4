// SHA-256: whether bytes are those that were written, and names for what they say.
#pragma once

#include <string>
#include <string_view>

namespace tower::compiler {

/// 64 hexadecimal digits.
std::string digest_of(std::string_view bytes);

}  // namespace tower::compiler
