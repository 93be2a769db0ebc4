#include "compile/seal.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "compile/digest.h"

namespace tower::compiler {
namespace {

constexpr std::string_view kMark = "tower compiled\n", kFormat = "format 1\n";

}  // namespace

std::string sealed(std::string_view bytes) {
  return std::string(kMark) + std::string(kFormat) + digest_of(bytes) + std::string(bytes);
}

std::string_view unsealed(std::string_view file) {
  const auto take = [&](size_t n) {
    if (file.size() < n) throw BytesError("it ends too early");
    const std::string_view taken = file.substr(0, n);
    file.remove_prefix(n);
    return taken;
  };
  if (file.substr(0, kMark.size()) != kMark) throw BytesError("it is not a compiled function");
  take(kMark.size());
  if (take(kFormat.size()) != kFormat) throw BytesError("its format is another Tower's");
  const std::string_view digest = take(kDigestSize);
  if (file.empty() || digest_of(file) != digest) throw BytesError("it was cut off or altered");
  return file;
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  return bytes;
}

bool write_file(const std::string& path, std::string_view bytes) {
  static std::atomic<uint64_t> number{0};
  const std::string temporary = path + "." + std::to_string(getpid()) + "." + std::to_string(number++);
  std::error_code error;
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (file) std::filesystem::rename(temporary, path, error);
    if (file && !error) return true;
  }
  std::filesystem::remove(temporary, error);
  return false;
}

}  // namespace tower::compiler
