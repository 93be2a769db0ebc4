// The checksum that zip files have of a record.
#pragma once

#include <cstdint>

namespace tower::exported {

/// CRC-32 of `size` bytes, with the polynomial 0xedb88320.
uint32_t crc32_of(const char* bytes, uint64_t size);

}  // namespace tower::exported
