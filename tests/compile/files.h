// A folder for a test's files, and the test itself in another process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// Removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tower_test_XXXXXX").string();
    if (mkdtemp(name.data())) path_ = name;
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// With this ending.
  std::vector<std::filesystem::path> files(const std::string& extension) const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().extension() == extension) found.push_back(entry.path());
    return found;
  }

 private:
  std::string path_;
};

/// For tests that another one runs in a process of its own: where it left what they need. Empty: nobody did.
inline std::string left_by_another_process() {
  const char* path = std::getenv("TOWER_TEST_LEFT");
  return path ? path : "";
}

/// Runs a test of this program in a new process, for which there is `left`. The exit status: 0 where it passed.
inline int run_in_new_process(const std::string& test, const std::string& left,
                              const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  const std::string filter = "--gtest_filter=" + test, program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> texts;
  for (char** variable = environ; *variable; ++variable) texts.emplace_back(*variable);
  for (const auto& [name, value] : environment) {
    std::erase_if(texts, [&, n = name](const std::string& text) { return text.rfind(n + "=", 0) == 0; });
    texts.push_back(name + "=" + value);
  }
  texts.push_back("TOWER_TEST_LEFT=" + left);
  std::vector<char*> variables;
  for (std::string& text : texts) variables.push_back(text.data());
  variables.push_back(nullptr);
  const pid_t child = vfork();
  if (child == 0) {
    execle(program.c_str(), program.c_str(), "--gtest_brief=1", filter.c_str(), nullptr, variables.data());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace support
