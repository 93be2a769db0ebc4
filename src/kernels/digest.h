// Whether bytes are those that were written, and names for what they say. Not against forgery: who can write a file of
// machine code decides what it does.
#pragma once

#include <c10/util/hash.h>

#include <string>
#include <string_view>

namespace tower::compiler {

constexpr size_t kDigestSize = 40;

/// Hexadecimal digits (SHA-1). Of at least one byte.
inline std::string digest_of(std::string_view bytes) { return c10::sha1(std::string(bytes)).str(); }

}  // namespace tower::compiler
