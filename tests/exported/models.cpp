#include "exported/models.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <fcntl.h>
#include <sys/file.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace exported_models {
namespace {

namespace fs = std::filesystem;

const fs::path& folder() {
  const char* given = std::getenv("TOWER_EXPORTED_MODELS");
  static const fs::path folder = given ? given : TOWER_EXPORTED_FOLDER;
  return folder;
}

/// Made already, by these scripts.
bool are_there(const fs::path& mark) {
  if (!fs::exists(mark)) return false;
  for (const auto& script : fs::directory_iterator(TOWER_EXPORTED_SCRIPTS))
    if (script.path().extension() == ".py" && script.last_write_time() > fs::last_write_time(mark)) return false;
  return true;
}

std::string make() {
#if !__has_include(<nlohmann/json.hpp>)
  return "this Tower was built without nlohmann/json.hpp";
#endif
  if (std::getenv("TOWER_EXPORTED_MODELS")) return {};  // made by another version (script/exported_versions)
  const std::string python = TOWER_EXPORTED_PYTHON;
  if (python.empty()) return "LibTorch is that of no Python, which could export models";
  fs::create_directories(folder());
  // Tests run in several processes: one makes the models.
  const int lock = ::open((folder() / "lock").c_str(), O_CREAT | O_RDWR, 0666);
  if (lock < 0 || ::flock(lock, LOCK_EX) != 0) return "the folder of models cannot be locked";
  const fs::path mark = folder() / "made", log = folder() / "log";
  std::string why;
  if (!are_there(mark)) {
    const std::string command = "'" + python + "' '" TOWER_EXPORTED_SCRIPTS "/make_models.py' '" + folder().string() +
                                "' > '" + log.string() + "' 2>&1";
    if (std::system(command.c_str()) == 0) std::ofstream(mark) << "made\n";
    else why = "make_models.py failed: see " + log.string();
  }
  ::close(lock);
  return why;
}

}  // namespace

const std::string& why_not() {
  static const std::string why = [] {
    const std::string why = make();
    // A Python that is there exports: that it does not is no reason to leave the tests out.
    EXPECT_TRUE(why.find("failed") == why.npos) << why;
    return why;
  }();
  return why;
}

std::string why_not(const std::string& name) {
  std::string why;
  std::getline(std::ifstream(folder() / (name + ".absent")), why);
  return why;
}

std::string file(const std::string& name) { return (folder() / (name + ".pt2")).string(); }

std::map<std::string, at::Tensor> expected(const std::string& name) {
  std::ifstream in(folder() / (name + ".pt"), std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict())
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  return tensors;
}

std::map<size_t, at::Tensor> numbered(const std::map<std::string, at::Tensor>& all, const std::string& begin) {
  std::map<size_t, at::Tensor> found;
  for (size_t i = 0; i < 16; ++i)
    if (const auto entry = all.find(begin + std::to_string(i)); entry != all.end()) found.emplace(i, entry->second);
  return found;
}

}  // namespace exported_models
