#include "kernels/code_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "core/once.h"
#include "kernels/checked_file.h"
#include "kernels/digest.h"
#include "tower/detail/spellings.h"
#include "tower/version.h"

namespace tower::compiler {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 4096;
constexpr size_t kSeldom = 64;  // files that are written before they are counted again
constexpr const char* kExtension = ".kernel";

}  // namespace

CodeSource::CodeSource(const CompileOptions& options, int64_t vector_bytes)
    : math_(options.math), vector_bytes_(vector_bytes), folder_(options.cache) {
  const char* named = std::getenv("TOWER_CACHE");
  if (folder_.empty() && named) folder_ = named;
}

CodeSource::CodeSource(Math math, Target target)
    : math_(math), vector_bytes_(target.vector_bytes), target_(std::move(target)) {}

std::string CodeSource::key_of(const Module& module) { return digest_of(module.function + "\n" + module.text); }

CodeSource::Found CodeSource::get(const Module& module, const std::string& key) const {
  if (target_)
    return {nullptr, /*generated=*/true,
            std::make_shared<const Written>(Written{module, Llvm::get().compile(module, *target_)})};
  if (auto code = find(key)) return {std::move(code), /*generated=*/false};
  auto code = std::make_unique<Code>(Llvm::get().compile(module));
  if (!folder_.empty()) keep(key, *code);
  return {std::move(code), /*generated=*/true};
}

CodeSource::Known CodeSource::known() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

void CodeSource::add(Known known) {
  const std::lock_guard lock(mutex_);
  known_.merge(known);
}

bool CodeSource::has_known() const {
  const std::lock_guard lock(mutex_);
  return !known_.empty();
}

std::optional<Binary> CodeSource::find_known(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

std::unique_ptr<Code> CodeSource::find(const std::string& key) const {
  if (const auto known = find_known(key)) return std::make_unique<Code>(*known);
  if (folder_.empty() || !is_ours()) return nullptr;
  const auto file = read_file(path_of(key));
  if (!file) return nullptr;
  try {
    ByteReader in(unsealed(*file));
    if (in.text() != key) return nullptr;
    auto code = std::make_unique<Code>(Binary::read(in));
    std::error_code error;
    fs::last_write_time(path_of(key), fs::file_time_type::clock::now(), error);  // used
    return code;
  } catch (const std::runtime_error&) {  // a BytesError, or a CompileError where it calls what is not there
    return nullptr;
  }
}

void CodeSource::keep(const std::string& key, const Code& code) const {
  ByteWriter out;
  out.text(key);
  code.binary().write(out);
  std::error_code error;
  if (fs::create_directories(folder_, error)) fs::permissions(folder_, fs::perms::owner_all, error);
  if (!is_ours()) return;
  if (const std::string why = write_file(path_of(key), sealed(out.bytes())); !why.empty()) {
    static std::atomic<bool> warned;
    warn_once(warned, "compile: machine code cannot be kept in the folder ", folder_, " (",
              tower::detail::spellings().kernel_cache, " or TOWER_CACHE): it is generated anew. (", why, ")");
    return;
  }
  static std::atomic<size_t> written{0};
  if (written++ % kSeldom == 0) remove_oldest();
}

// Who can write there decides what is executed. That holds for root, too, in a container or not.
bool CodeSource::is_ours() const {
  struct stat status;
  if (stat(folder_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return true;  // reading and writing will fail
  const bool others = status.st_uid != geteuid() && status.st_uid != 0;
  if (!others && !(status.st_mode & (S_IWGRP | S_IWOTH))) return true;
  static std::atomic<bool> warned;
  warn_once(warned, "compile: the folder ", folder_, " (", tower::detail::spellings().kernel_cache, " or TOWER_CACHE) ",
            others ? "belongs to another user" : "can be written to by other users",
            ", who could put machine code there that this program would run. It is not used. Name a folder of your own",
            others ? "." : ", or take the right from them (chmod go-w).");
  return false;
}

std::string CodeSource::path_of(const std::string& key) const {
  const std::string name = digest_of(std::string("tower ") + version() + "\n" + Cpu::get().text() + "\n" + key);
  return (fs::path(folder_) / (name + kExtension)).string();
}

void CodeSource::remove_oldest() const {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    // Those that a process left behind half written, too.
    if (it->path().filename().string().find(kExtension) == std::string::npos) continue;
    std::error_code gone;  // another process may have removed it
    const auto time = it->last_write_time(gone);
    if (!gone) files.emplace_back(time, it->path());
  }
  if (files.size() <= kMostFiles) return;
  std::sort(files.begin(), files.end());
  files.resize(files.size() - kMostFiles * 3 / 4);
  for (const auto& [time, path] : files) fs::remove(path, error);
}

}  // namespace tower::compiler
