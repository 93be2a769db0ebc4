// Where machine code comes from: the folder of a cache, and what becomes of files in it that are not whole.
#include "kernels/code_source.h"

#include <sys/stat.h>
#include <tower/compile.h>

#include <thread>

#include "compile/files.h"
#include "compile/kernels.h"
#include "kernels/checked_file.h"
#include "support/prelude.h"

namespace {

using support::Folder;
using tower::compiler::read_file;
using tower::compiler::write_file;

Tensor chain(const Tensor& x) { return ((x * x + 0.3).log().sin() * x + x.exp()).square(); }

void run_with(const tower::CompileOptions& options) {
  const auto f = tower::compile(chain, options);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same(f(waves({40})), chain(waves({40}))));
  EXPECT_TRUE(contains(f.report(), "kernel 0"));
}

constexpr const char* kByEnvironment = "named by the environment";

TEST(CodeCache, KeepsMachineCodeForProcessesThatHaveNoLlvm) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  run_with({.cache = folder / "cache"});
  EXPECT_EQ(support::run_in_new_process("CodeCache.InAProcessWithoutLlvm", folder / "cache",
                                        {{"TOWER_LLVM", "/nowhere/libLLVM.so"}}),
            0);
  // The environment names it, too.
  EXPECT_EQ(support::run_in_new_process("CodeCache.InAProcessWithoutLlvm", kByEnvironment,
                                        {{"TOWER_LLVM", "/nowhere/libLLVM.so"}, {"TOWER_CACHE", folder / "cache"}}),
            0);
}

TEST(CodeCache, InAProcessWithoutLlvm) {
  const std::string left = support::left_by_another_process();
  if (left.empty()) GTEST_SKIP() << "another test runs it";
  run_with({.cache = left == kByEnvironment ? "" : left});
}

TEST(CodeCache, FilesThatAreNotWholeAreMadeAnew) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  run_with({.cache = folder.path()});
  const auto files = folder.files(".kernel");
  ASSERT_EQ(files.size(), 1u);
  const std::string path = files[0].string(), whole = *read_file(path);
  for (const std::string& other : {std::string(), whole.substr(0, 40), whole.substr(0, whole.size() - 1),
                                   whole.substr(0, whole.size() / 2) + "x" + whole.substr(whole.size() / 2 + 1),
                                   tower::compiler::sealed("something else")}) {
    ASSERT_EQ(write_file(path, other), "");
    run_with({.cache = folder.path()});
    EXPECT_EQ(*read_file(path), whole);
  }
}

TEST(CodeCache, AFolderThatCannotBeWrittenIsNoError) {
  TOWER_NEEDS_LLVM();
  run_with({.cache = "/proc/nowhere"});
}

// Whether the folder was used is told by what is in it: the number of its files.
size_t files_after_a_run(const Folder& folder) {
  run_with({.cache = folder.path()});
  return folder.files(".kernel").size();
}

TEST(CodeCache, AFolderThatOthersCanWriteToIsNeitherReadNorWritten) {
  TOWER_NEEDS_LLVM();
  namespace fs = std::filesystem;
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_write}) {
    const Folder folder;
    fs::permissions(folder.path(), others, fs::perm_options::add);
    EXPECT_EQ(files_after_a_run(folder), 0u);
    fs::permissions(folder.path(), others, fs::perm_options::remove);
    EXPECT_EQ(files_after_a_run(folder), 1u);
    // What is there may have been put there by others: it is not even marked as used.
    fs::permissions(folder.path(), others, fs::perm_options::add);
    const auto file = folder.files(".kernel")[0];
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
    fs::last_write_time(file, old);
    run_with({.cache = folder.path()});
    EXPECT_LT(fs::last_write_time(file), old + std::chrono::minutes(1));
    fs::permissions(folder.path(), others, fs::perm_options::remove);
    run_with({.cache = folder.path()});
    EXPECT_GT(fs::last_write_time(file), old + std::chrono::minutes(1));
  }
}

TEST(CodeCache, AFolderOfAnotherUserIsNotUsed) {
  TOWER_NEEDS_LLVM();
  if (geteuid() != 0) GTEST_SKIP() << "only root gives a folder away";
  const Folder folder;
  ASSERT_EQ(chown(folder.path().c_str(), 12345, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(files_after_a_run(folder), 0u);
  ASSERT_EQ(chown(folder.path().c_str(), 0, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(files_after_a_run(folder), 1u);
}

TEST(CodeCache, WhatIsNoFileInItIsLeftAndTheCodeIsGenerated) {
  TOWER_NEEDS_LLVM();
  namespace fs = std::filesystem;
  const Folder folder;
  ASSERT_EQ(files_after_a_run(folder), 1u);
  const fs::path entry = folder.files(".kernel")[0];
  fs::remove(entry);
  fs::create_directory(entry);
  write_file((entry / "inside").string(), "something");
  run_with({.cache = folder.path()});
  EXPECT_EQ(*read_file((entry / "inside").string()), "something");
  fs::remove_all(entry);
  // A link to itself, and a pipe that nobody writes to.
  fs::create_symlink(entry.filename(), entry);
  run_with({.cache = folder.path()});
  fs::remove(entry);
  ASSERT_EQ(mkfifo(entry.c_str(), 0600), 0);
  run_with({.cache = folder.path()});
  EXPECT_TRUE(fs::is_fifo(entry));
  fs::remove(entry);
  EXPECT_EQ(files_after_a_run(folder), 1u);
}

TEST(CodeCache, ACacheThatIsAFileIsNoError) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  write_file(folder / "file", "something");
  run_with({.cache = folder / "file"});
  EXPECT_EQ(*read_file(folder / "file"), "something");
}

TEST(CodeCache, IsBoundedByLeavingOutTheOldest) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  namespace fs = std::filesystem;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (int i = 0; i < 5000; ++i) {
    const std::string path = folder / (std::to_string(i) + ".kernel");
    write_file(path, "");
    fs::last_write_time(path, old + std::chrono::milliseconds(i));
  }
  const tower::CompileOptions options{.cache = folder.path()};
  for (int i = 0; i < 64; ++i) {  // counted now and then
    tower::compiler::CodeSource source(options);
    const auto build = [&](auto& graph, const auto& in) {
      return std::vector{
          graph.make(tower::compiler::Op::add, in[0], graph.constant(tower::compiler::Type::f64, 0.5 + i))};
    };
    const kernels::Kernel kernel(kernels::region_of({at::kDouble}, build), source);
  }
  EXPECT_LE(folder.files(".kernel").size(), 4096u + 64);
  EXPECT_FALSE(fs::exists(folder / "0.kernel"));
  EXPECT_TRUE(fs::exists(folder / "4999.kernel"));
}

TEST(CodeCache, IsSharedByThreads) {
  TOWER_NEEDS_LLVM();
  const Folder folder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) run_with({.cache = folder.path()});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(folder.files(".kernel").size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // no temporary is left
}

}  // namespace
