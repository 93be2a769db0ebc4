#include "kernels/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/digest.h"

namespace tower::compiler {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "tower compiled\n", kFormat = "format 2\n";

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

namespace {

std::string error_text() { return std::strerror(errno); }

// A descriptor, closed at the end.
class File {
 public:
  File(const std::string& path, int flags) : number_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return number_ >= 0; }
  /// Empty where it is an ordinary file; else what it is.
  std::string strange() const {
    struct stat status;
    if (fstat(number_, &status) != 0) return error_text();
    return S_ISREG(status.st_mode) ? "" : S_ISDIR(status.st_mode) ? "it is a folder" : "it is no ordinary file";
  }
  /// False: errno says why.
  bool read(std::string& bytes) const {
    char some[1 << 16];
    for (ssize_t n; (n = ::read(number_, some, sizeof some)) != 0;) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      bytes.append(some, static_cast<size_t>(n));
    }
    return true;
  }
  bool write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::write(number_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool close() { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

// What links lead to, if only to a file that is not there yet.
fs::path behind_links(fs::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(path, error); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

}  // namespace

std::optional<std::string> read_file(const std::string& path, std::string* why_not) {
  const auto refuse = [&](const std::string& why) {
    if (why_not) *why_not = why;
    return std::nullopt;
  };
  const File file(path, O_RDONLY | O_NONBLOCK);  // which does not wait for who would write to a pipe
  if (!file.is_open()) return refuse("it cannot be read (" + error_text() + ")");
  if (const std::string strange = file.strange(); !strange.empty()) return refuse(strange);
  std::string bytes;
  if (!file.read(bytes)) return refuse("it cannot be read (" + error_text() + ")");
  return bytes;
}

std::string write_file(const std::string& path, std::string_view bytes) {
  static std::atomic<uint64_t> number{0};
  const fs::path target = behind_links(path);
  std::error_code error;
  const fs::file_status there = fs::status(target, error);
  if (fs::is_directory(there)) return "it is a folder";
  if (fs::exists(there) && !fs::is_regular_file(there)) return "it is no ordinary file";
  const std::string temporary = target.string() + "." + std::to_string(getpid()) + "." + std::to_string(number++);
  File file(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file.is_open()) return error_text();
  std::string why;
  if (!file.write(bytes) || !file.close()) why = error_text();
  if (why.empty() && fs::exists(there)) fs::permissions(temporary, there.permissions(), error);
  if (why.empty() && rename(temporary.c_str(), target.c_str()) != 0) why = error_text();
  if (!why.empty()) fs::remove(temporary, error);
  return why;
}

}  // namespace tower::compiler
