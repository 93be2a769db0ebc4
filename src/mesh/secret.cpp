#include "mesh/secret.h"

#include <c10/util/hash.h>

#include <cstdint>
#include <cstdlib>
#include <random>

namespace tower::mesh {
namespace {

constexpr size_t kBlock = 64;  // bytes that SHA-1 takes at a time

std::string digest_of(const std::string& bytes) {
  const std::string digits = c10::sha1(bytes).str();
  std::string digest;
  for (size_t i = 0; i < digits.size(); i += 2)
    digest += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, /*base=*/16));
  return digest;
}

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) {
    digits += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    digits += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15];
  }
  return digits;
}

}  // namespace

Secret Secret::from_environment() {
  const char* text = std::getenv("TOWER_MESH_SECRET");
  return text ? Secret(text) : Secret();
}

std::string Secret::code_of(std::string_view message) const {
  std::string key = text_.size() > kBlock ? digest_of(text_) : text_;
  key.resize(kBlock, '\0');
  std::string inner = key, outer = key;
  for (char& byte : inner) byte ^= 0x36;
  for (char& byte : outer) byte ^= 0x5c;
  return hexadecimal(digest_of(outer + digest_of(inner.append(message))));
}

// In a time that does not tell where they differ.
bool Secret::is_code_of(std::string_view code, std::string_view message) const {
  const std::string expected = code_of(message);
  if (code.size() != expected.size()) return false;
  int differing = 0;
  for (size_t i = 0; i < code.size(); ++i) differing |= code[i] ^ expected[i];
  return differing == 0;
}

std::string Secret::draw() {
  std::random_device source;
  std::string bytes;
  while (bytes.size() < kDrawn / 2) {
    const uint32_t number = source();
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return hexadecimal(bytes);
}

}  // namespace tower::mesh
