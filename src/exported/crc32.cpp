// By products of polynomials where the processor multiplies without carries: 64 bytes at a time, which is as fast as
// memory is read (Gopal, Ozturk, Guilford, Wolrich et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009). Otherwise, and for what is left, by tables, eight bytes at a time ("slicing by
// eight", Kounavis and Berry 2005).
#include "exported/crc32.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tower::exported {
namespace {

class CrcTables {
 public:
  /// The remainder behind `size` more bytes.
  static uint32_t over(uint32_t crc, const char* bytes, uint64_t size) {
    static const CrcTables tables;
    for (; size >= 8; size -= 8, bytes += 8) {
      uint64_t word;
      std::memcpy(&word, bytes, sizeof word);
      word ^= crc;
      crc = 0;
      for (size_t k = 0; k < 8; ++k) crc ^= tables.table_[7 - k][word >> (8 * k) & 0xff];
    }
    for (; size > 0; --size, ++bytes) crc = crc >> 8 ^ tables.table_[0][(crc ^ static_cast<uint8_t>(*bytes)) & 0xff];
    return crc;
  }

 private:
  CrcTables() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
      table_[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k)
      for (size_t byte = 0; byte < 256; ++byte)
        table_[k][byte] = table_[k - 1][byte] >> 8 ^ table_[0][table_[k - 1][byte] & 0xff];
  }
  std::array<std::array<uint32_t, 256>, 8> table_;
};

#if defined(__x86_64__)

#define TOWER_CARRYLESS __attribute__((target("pclmul,sse4.1")))

TOWER_CARRYLESS __m128i load_16(const char* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }

/// `folded`, moved on by the distance whose two powers of x are `powers`, and `next` with it.
TOWER_CARRYLESS __m128i fold(__m128i folded, __m128i powers, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(folded, powers, 0x00), high = _mm_clmulepi64_si128(folded, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// As CrcTables::over, for a multiple of 16 bytes from 64 on.
TOWER_CARRYLESS uint32_t carryless_over(uint32_t crc, const char* bytes, uint64_t size) {
  // Powers of x, reflected, that move by 512 bits and by 128; the last step's, and the polynomial with its inverse.
  const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4),
                by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0), by_64 = _mm_set_epi64x(0, 0x0163cd6124),
                polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641), low_halves = _mm_setr_epi32(~0, 0, ~0, 0);
  __m128i a = _mm_xor_si128(load_16(bytes), _mm_cvtsi32_si128(static_cast<int>(crc))), b = load_16(bytes + 16),
          c = load_16(bytes + 32), d = load_16(bytes + 48);
  for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
    a = fold(a, by_512, load_16(bytes));
    b = fold(b, by_512, load_16(bytes + 16));
    c = fold(c, by_512, load_16(bytes + 32));
    d = fold(d, by_512, load_16(bytes + 48));
  }
  a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
  for (; size >= 16; bytes += 16, size -= 16) a = fold(a, by_128, load_16(bytes));
  // 128 bits to 64, to 32, by Barrett's reduction.
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_halves), by_64, 0x00));
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low_halves), polynomial, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_halves), polynomial, 0x00);
  return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, quotient), 1));
}

#undef TOWER_CARRYLESS

bool multiplies_without_carries() {
  static const bool does = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return does;
}

#endif

}  // namespace

uint32_t crc32_of(const char* bytes, uint64_t size) {
  uint32_t crc = ~uint32_t{0};
#if defined(__x86_64__)
  if (size >= 64 && multiplies_without_carries()) {
    const uint64_t whole = size / 16 * 16;
    crc = carryless_over(crc, bytes, whole);
    bytes += whole;
    size -= whole;
  }
#endif
  return ~CrcTables::over(crc, bytes, size);
}

}  // namespace tower::exported
