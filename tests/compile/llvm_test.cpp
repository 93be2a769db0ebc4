// LLVM as a library that may be missing, unfit or give up: each is an answer, and the process goes on.
#include "kernels/llvm.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "compile/kernels.h"

namespace {

using tower::compiler::Code;
using tower::compiler::CompileError;
using tower::compiler::Llvm;

std::string refusal(const Llvm& llvm, const std::string& text) {
  try {
    const Code code(llvm.compile({.text = text, .function = "f"}));
  } catch (const CompileError& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Llvm, CompilesTextAndFreesTheCode) {
  TOWER_NEEDS_LLVM();
  const Llvm& llvm = Llvm::get();
  for (int i = 0; i < 3; ++i) {  // the name is free again each time
    const Code code(
        llvm.compile({.text = "define i32 @twice(i32 %x) { %y = add i32 %x, %x ret i32 %y }", .function = "twice"}));
    EXPECT_EQ(reinterpret_cast<int (*)(int)>(code.address())(21), 42);
    EXPECT_GT(code.bytes(), 0u);
  }
}

TEST(Llvm, CallsFunctionsOfTheProcess) {
  TOWER_NEEDS_LLVM();
  const Code code(
      Llvm::get().compile({.text = "declare i32 @abs(i32)\ndeclare double @cos(double)\n"
                                   "define double @call(i32 %x) { %y = call i32 @abs(i32 %x) "
                                   "%z = sitofp i32 %y to double %c = call double @cos(double %z) ret double %c }",
                           .function = "call"}));
  EXPECT_EQ(reinterpret_cast<double (*)(int)>(code.address())(-2), std::cos(2.0));
  // From its bytes, too, which have no addresses in them.
  tower::compiler::ByteWriter out;
  code.binary().write(out);
  tower::compiler::ByteReader in(out.bytes());
  const Code again(tower::compiler::Binary::read(in));
  EXPECT_EQ(reinterpret_cast<double (*)(int)>(again.address())(3), std::cos(3.0));
}

TEST(Llvm, TextThatIsWrongIsAnErrorThatSaysWhere) {
  TOWER_NEEDS_LLVM();
  EXPECT_TRUE(has(refusal(Llvm::get(), "define i32 @f() { ret i64 0 }"), "i32"));
  EXPECT_TRUE(has(refusal(Llvm::get(), "nonsense"), "expected"));
  EXPECT_TRUE(Llvm::get().works());
}

TEST(Llvm, AFunctionThatIsNowhereIsAnError) {
  TOWER_NEEDS_LLVM();
  EXPECT_TRUE(has(refusal(Llvm::get(),
                          "declare void @tower_test_missing()\n"
                          "define void @f() { call void @tower_test_missing() ret void }"),
                  "tower_test_missing"));
}

TEST(Llvm, WithoutALibraryItSaysWhatWasLookedFor) {
  const Llvm llvm({"/nowhere/libLLVM.so", "/nowhere/else.so"});
  EXPECT_FALSE(llvm.works());
  EXPECT_TRUE(has(llvm.why_not(), "/nowhere/libLLVM.so")) << llvm.why_not();
  EXPECT_TRUE(has(refusal(llvm, ""), "no LLVM"));
}

TEST(Llvm, ALibraryThatLacksFunctionsIsRefusedByName) {
  const Llvm llvm({"libm.so.6"});
  EXPECT_FALSE(llvm.works());
  EXPECT_TRUE(has(llvm.why_not(), "libm.so.6")) << llvm.why_not();
  EXPECT_TRUE(has(llvm.why_not(), "LLVMContextCreate")) << llvm.why_not();
}

TEST(Llvm, AVersionThatIsTooOldIsRefused) {
  if (!dlopen("libLLVM-14.so.1", RTLD_LAZY | RTLD_LOCAL)) GTEST_SKIP() << "LLVM 14 is not installed";
  const Llvm llvm({"libLLVM-14.so.1"});
  EXPECT_FALSE(llvm.works());
  EXPECT_TRUE(has(llvm.why_not(), "versions 15 to 22")) << llvm.why_not();
}

TEST(Llvm, TheFirstLibraryThatWillDoIsTaken) {
  TOWER_NEEDS_LLVM();
  const Llvm llvm({"/nowhere/libLLVM.so", "libm.so.6", Llvm::get().library()});
  EXPECT_TRUE(llvm.works()) << llvm.why_not();
  EXPECT_EQ(llvm.library(), Llvm::get().library());
}

// The handler of fatal errors is one for the process: outside of a translation it is whatever others have, or none.
TEST(LlvmDeathTest, WhoElseUsesTheLibraryMeetsLlvmAsItIs) {
  TOWER_NEEDS_LLVM();
  const Code code(Llvm::get().compile({.text = "define i32 @f() { ret i32 3 }", .function = "f"}));
  void* const library = dlopen(Llvm::get().library().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(library);
  const auto fatal = reinterpret_cast<void* (*)(const char*)>(dlsym(library, "LLVMCreateTargetData"));
  const auto install =
      reinterpret_cast<void (*)(void (*)(const char*))>(dlsym(library, "LLVMInstallFatalErrorHandler"));
  ASSERT_TRUE(fatal && install);
  EXPECT_DEATH(fatal("no layout"), "LLVM ERROR: .+");
  const auto theirs = [](const char*) { std::_Exit(7); };
  EXPECT_EXIT((install(theirs), fatal("no layout")), testing::ExitedWithCode(7), "");
}

// An instruction of another processor cannot be selected, which LLVM takes for the end.
TEST(Llvm, AFatalErrorEndsItsUseAndNotTheProcess) {
  TOWER_NEEDS_LLVM();
  const Llvm llvm({Llvm::get().library()});
  const Code before(llvm.compile({.text = "define i32 @f() { ret i32 3 }", .function = "f"}));
  const bool on_x86 = llvm.here().machine == tower::compiler::Machine::x86_64;
  const std::string theirs = on_x86 ? "i32 @llvm.aarch64.crc32b(i32" : "i32 @llvm.x86.sse42.crc32.32.32(i32";
  const std::string error = refusal(
      llvm, "declare " + theirs + ", i32)\ndefine i32 @f(i32 %x) { %y = call " + theirs + " %x, i32 %x) ret i32 %y }");
  EXPECT_TRUE(has(error, "fatal error")) << error;
  EXPECT_FALSE(llvm.works());
  EXPECT_TRUE(has(llvm.why_not(), "fatal error")) << llvm.why_not();
  EXPECT_TRUE(has(refusal(llvm, "define i32 @f() { ret i32 3 }"), "no LLVM"));
  EXPECT_EQ(reinterpret_cast<int (*)()>(before.address())(), 3);  // what there is goes on working
}

}  // namespace
