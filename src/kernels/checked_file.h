// Bytes in files: what was written is what is read, or an error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/bytes.h"

namespace tower::compiler {

/// `bytes` with a mark before them by which a file is known, and a digest.
std::string sealed(std::string_view bytes);
/// The bytes that were sealed. Throws a BytesError where the file is not whole, or was not made by `sealed`.
std::string_view unsealed(std::string_view file);

/// An ordinary file's bytes; none where it cannot be read, and why.
std::optional<std::string> read_file(const std::string& path, std::string* why_not = nullptr);
/// Writes a file under another name first: who reads sees all of it or what was there. Links are followed; what is
/// there and is no ordinary file, such as a device, stays. Gives why it cannot be done; nothing where it is.
std::string write_file(const std::string& path, std::string_view bytes);

}  // namespace tower::compiler
