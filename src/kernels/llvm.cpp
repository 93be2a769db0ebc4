// The order of things: `load` finds a library and all functions of it that are needed (LlvmApi), `start` asks it for
// the CPU. `compile` parses the text in a context of its own, generates an object file in memory (`run`; this is where
// the time goes), and links it (kernels/machine_code.h): LLVM keeps nothing.
//
// NOTE [Fatal errors]
// LLVM ends the process where it meets what it cannot do: an instruction that it cannot select, say. Its handler for
// that must not return, so ours leaves by longjmp, as LLVM's own crash recovery does; between the jump's two ends are
// frames of LLVM's and of functions here without destructors. What LLVM had in hand is lost, and it may hold locks: it
// is not called again, for nothing, and compiled functions run operator by operator from then on.
//
// The handler is one for all who use the library, in every thread. So ours is there while a thread of ours is inside of
// `run`, and goes with the last of them; what LLVM says to somebody else meanwhile is printed as LLVM prints it, and
// the process ends as it would have. Who has a handler in the very library loses it: LLVM tells nobody which it has.
//
// NOTE [The end of the process]
// A static object's destructor may call a compiled function. What static objects LLVM has may be gone by then: those of
// the library since it was loaded, those in its functions since they were first called, all in the reverse order. So
// after each of these times one more function is left to be called at exit, before what was there then is destroyed,
// and no machine code is generated from the first such call on. That which there is runs until the end.
#include "kernels/llvm.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

#include "kernels/cpu.h"

namespace tower::compiler {

namespace {

// What the C API calls by names of its own: handles.
using Handle = void*;
// With the level above, which schedules anew once registers are allocated, kernels are no faster, and where the CPU's
// model asks for that, as AMD's do, it takes as long as all the rest: it grows with the square of a block.
enum { kLessOptimization = 1, kPositionIndependent = 2, kReturnStatus = 2 };
// On AArch64, "tiny" code finds its constants by their distance alone, wherever it is; other code by pages of memory.
enum { kDefaultCodeModel = 0, kTinyCodeModel = 2 };
enum { kAssembler = 0, kObjectFile = 1 };
enum { kErrorSeverity = 0 };

}  // namespace

struct LlvmApi {
  Handle (*context_create)();
  void (*context_dispose)(Handle);
  void (*context_set_diagnostic_handler)(Handle, void (*)(Handle, void*), void*);
  int (*diagnostic_severity)(Handle);
  Handle (*buffer_of_copy)(const char*, size_t, const char*);
  const char* (*buffer_start)(Handle);
  size_t (*buffer_size)(Handle);
  void (*dispose_buffer)(Handle);
  int (*parse)(Handle context, Handle buffer, Handle* module, char** message);
  int (*verify)(Handle module, int action, char** message);
  void (*dispose_module)(Handle);
  void (*set_target)(Handle module, const char* triple);
  void (*set_data_layout)(Handle module, Handle layout);

  // One that the library has; which all have of their own machine.
  struct BackEnd {
    void (*info)();
    void (*target)();
    void (*code)();
    void (*assembler)();

    bool is_there() const { return info && target && code && assembler; }
    void initialize() const {
      if (!is_there()) return;
      info();
      target();
      code();
      assembler();
    }
  };
  BackEnd x86, arm;
  char* (*default_triple)();
  char* (*host_cpu)();
  char* (*host_features)();
  void (*dispose_message)(char*);
  int (*target_from_triple)(const char* triple, Handle* target, char** message);
  Handle (*create_machine)(Handle target, const char* triple, const char* cpu, const char* features, int level,
                           int relocation, int code_model);
  void (*dispose_machine)(Handle);
  Handle (*create_data_layout)(Handle machine);
  void (*dispose_data_layout)(Handle);
  int (*emit)(Handle machine, Handle module, int kind, char** message, Handle* buffer);

  void (*install_fatal_error_handler)(void (*)(const char*));
  void (*reset_fatal_error_handler)();

  /// The first function that `library` lacks of those that code for `here` asks for; null if it has all.
  const char* resolve(void* library, Machine here) {
    const char* missing = nullptr;
    const auto look_for = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    const auto find = [&](auto& function, const char* name) {
      look_for(function, name);
      if (!function && !missing) missing = name;
    };
    find(context_create, "LLVMContextCreate");
    find(context_dispose, "LLVMContextDispose");
    find(context_set_diagnostic_handler, "LLVMContextSetDiagnosticHandler");
    find(diagnostic_severity, "LLVMGetDiagInfoSeverity");
    find(buffer_of_copy, "LLVMCreateMemoryBufferWithMemoryRangeCopy");
    find(buffer_start, "LLVMGetBufferStart");
    find(buffer_size, "LLVMGetBufferSize");
    find(dispose_buffer, "LLVMDisposeMemoryBuffer");
    find(parse, "LLVMParseIRInContext");
    find(verify, "LLVMVerifyModule");
    find(dispose_module, "LLVMDisposeModule");
    find(set_target, "LLVMSetTarget");
    find(set_data_layout, "LLVMSetModuleDataLayout");
    const auto back_end = [&](BackEnd& of, Machine machine, const std::array<const char*, 4>& names) {
      look_for(of.info, names[0]);
      look_for(of.target, names[1]);
      look_for(of.code, names[2]);
      look_for(of.assembler, names[3]);
      if (machine == here && !of.is_there() && !missing) missing = names[1];
    };
    back_end(x86, Machine::x86_64,
             {"LLVMInitializeX86TargetInfo", "LLVMInitializeX86Target", "LLVMInitializeX86TargetMC",
              "LLVMInitializeX86AsmPrinter"});
    back_end(arm, Machine::aarch64,
             {"LLVMInitializeAArch64TargetInfo", "LLVMInitializeAArch64Target", "LLVMInitializeAArch64TargetMC",
              "LLVMInitializeAArch64AsmPrinter"});
    find(default_triple, "LLVMGetDefaultTargetTriple");
    find(host_cpu, "LLVMGetHostCPUName");
    find(host_features, "LLVMGetHostCPUFeatures");
    find(dispose_message, "LLVMDisposeMessage");
    find(target_from_triple, "LLVMGetTargetFromTriple");
    find(create_machine, "LLVMCreateTargetMachine");
    find(dispose_machine, "LLVMDisposeTargetMachine");
    find(create_data_layout, "LLVMCreateTargetDataLayout");
    find(dispose_data_layout, "LLVMDisposeTargetData");
    find(emit, "LLVMTargetMachineEmitToMemoryBuffer");
    find(install_fatal_error_handler, "LLVMInstallFatalErrorHandler");
    find(reset_fatal_error_handler, "LLVMResetFatalErrorHandler");
    return missing;
  }
};

namespace {

// ---- fatal errors ----

struct Escape {
  std::jmp_buf back;
  char message[512];
};
thread_local Escape* escape = nullptr;

void leave(const char* message) {
  if (!escape) {  // somebody else uses the library: LLVM ends the process when this returns, without a word
    std::fprintf(stderr, "LLVM ERROR: %s\n", message);
    return;
  }
  std::strncpy(escape->message, message, sizeof escape->message - 1);
  escape->message[sizeof escape->message - 1] = 0;
  std::longjmp(escape->back, 1);
}

// As long as one lives, LLVM's fatal errors come to `leave`.
class FatalErrors {
 public:
  explicit FatalErrors(const LlvmApi& api) : api_(api) {
    const std::lock_guard lock(mutex());
    if (alive()[library()]++ == 0) api_.install_fatal_error_handler(leave);
  }
  ~FatalErrors() {
    // Also after a fatal error: LLVM calls the handler without the lock that this takes.
    const std::lock_guard lock(mutex());
    if (--alive()[library()] == 0) api_.reset_fatal_error_handler();
  }
  FatalErrors(const FatalErrors&) = delete;
  FatalErrors& operator=(const FatalErrors&) = delete;

 private:
  // Never destroyed: static objects may compile when they end.
  static std::mutex& mutex() {
    static auto& one = *new std::mutex;
    return one;
  }
  static std::map<const void*, int64_t>& alive() {
    static auto& of_libraries = *new std::map<const void*, int64_t>;
    return of_libraries;
  }
  // Each Llvm of a library finds the same functions.
  const void* library() const { return reinterpret_cast<const void*>(api_.install_fatal_error_handler); }

  const LlvmApi& api_;
};

// Calls `f(arguments)`, a function without destructors; false if LLVM gave up meanwhile.
template <class Arguments>
bool survives(void (*f)(Arguments&), Arguments& arguments, Escape& here) {
  Escape* const outer = escape;
  escape = &here;
  if (setjmp(here.back) != 0) {
    escape = outer;
    return false;
  }
  f(arguments);
  escape = outer;
  return true;
}

// ---- the end of the process ----

std::atomic<bool> ending = false;

// NOTE [The end of the process].
void stop_before_what_there_is_now_ends() {
  if (!ending) std::atexit([] { ending = true; });
}

// ---- one translation ----

struct Translation {
  const LlvmApi& api;
  const char *text, *triple, *cpu, *features;
  size_t length;
  int code_model, kind;
  Handle object = nullptr;  // null: refused, and `message` says why
  char* message = nullptr;  // LLVM's
  bool refused = false;     // by a diagnostic
};

// Without a handler of the context's own, LLVM prints an error and ends the process.
void note_diagnostic(Handle diagnostic, void* translation) {
  auto& t = *static_cast<Translation*>(translation);
  if (t.api.diagnostic_severity(diagnostic) == kErrorSeverity) t.refused = true;
}

void run(Translation& t) {
  const LlvmApi& api = t.api;
  const Handle context = api.context_create();
  api.context_set_diagnostic_handler(context, note_diagnostic, &t);
  Handle module = nullptr, target = nullptr;
  // The buffer is the parser's from here on.
  if (api.parse(context, api.buffer_of_copy(t.text, t.length, "tower"), &module, &t.message) == 0) {
    if (api.verify(module, kReturnStatus, &t.message) == 0 &&
        api.target_from_triple(t.triple, &target, &t.message) == 0) {
      const Handle machine = api.create_machine(target, t.triple, t.cpu, t.features, kLessOptimization,
                                                kPositionIndependent, t.code_model);
      const Handle layout = api.create_data_layout(machine);
      api.set_data_layout(module, layout);
      api.dispose_data_layout(layout);
      api.set_target(module, t.triple);
      if (api.emit(machine, module, t.kind, &t.message, &t.object) != 0) t.object = nullptr;
      if (t.refused && t.object) {
        api.dispose_buffer(t.object);
        t.object = nullptr;
      }
      api.dispose_machine(machine);
    }
    api.dispose_module(module);
  }
  api.context_dispose(context);
}

std::vector<std::string> usual_names() {
  if (const char* named = std::getenv("TOWER_LLVM")) return {named};
  std::vector<std::string> names;
  for (int version = 22; version >= 15; --version) {
    const std::string v = std::to_string(version);
    names.push_back("libLLVM.so." + v + ".1");
    names.push_back("libLLVM-" + v + ".so.1");
    names.push_back("libLLVM-" + v + ".so");
  }
  return names;
}

}  // namespace

const Llvm& Llvm::get() {
  // Kept to the end of the process: kernels may be freed by what is destroyed last.
  static const Llvm& llvm = *new Llvm(usual_names());
  return llvm;
}

Llvm::Llvm(const std::vector<std::string>& libraries) {
  const Cpu& cpu = Cpu::get();
  if (!cpu.machine()) {
    why_not_ = "machine code is generated for x86-64, and for AArch64 under Linux, only";
    return;
  }
  for (const std::string& library : libraries)
    if (load(library)) break;
  if (!api_) return;
  if (cpu.vector_bytes() == 0) give_up("kernels need a CPU with AVX2, FMA and F16C, or with NEON");
  else start();
}

Llvm::~Llvm() = default;

bool Llvm::works() const {
  const std::lock_guard lock(mutex_);
  return api_ && why_not_.empty() && !ending;
}

std::string Llvm::why_not() const {
  const std::lock_guard lock(mutex_);
  return why_not_.empty() && ending ? "the process ends, and LLVM with it" : why_not_;
}

void Llvm::give_up(const std::string& why) const {
  const std::lock_guard lock(mutex_);
  why_not_ = library_ + ": " + why;
}

bool Llvm::load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    // Of many names, that they are not there is no news.
    if (why_not_.empty()) why_not_ = error ? error : library + ": not found";
    return false;
  }
  auto api = std::make_unique<LlvmApi>();
  const char* missing = api->resolve(handle, *Cpu::get().machine());
  // Before version 15 pointers had types. (Versions from 16 on say which they are.)
  if (!missing && !dlsym(handle, "LLVMGetVersion") && !dlsym(handle, "LLVMContextSetOpaquePointers"))
    missing = "LLVMContextSetOpaquePointers";
  if (missing) {
    why_not_ = library + ": it has no " + missing + "; versions 15 to 22 of LLVM have it";
    dlclose(handle);
    return false;
  }
  library_ = library;
  api_ = std::move(api);
  why_not_.clear();
  return true;
}

std::string Llvm::taken(char* message) const {
  std::string text = message ? message : "no reason given";
  if (message) api_->dispose_message(message);
  return text;
}

void Llvm::start() {
  api_->x86.initialize();
  api_->arm.initialize();
  const Cpu& cpu = Cpu::get();
  here_ = {*cpu.machine(), taken(api_->default_triple()), "generic", "", cpu.vector_bytes()};
  if (here_.machine == Machine::x86_64) {
    here_.cpu = taken(api_->host_cpu());
    here_.features = taken(api_->host_features());
  } else {
    // A model of Arm's comes with extensions of which the system may have taken some away, and LLVM does not ask it.
    for (const std::string& name : cpu.features()) here_.features += (here_.features.empty() ? "+" : ",+") + name;
  }
  stop_before_what_there_is_now_ends();
}

std::string Llvm::emitted(const Module& module, const Target& target, int kind) const {
  if (!works()) throw CompileError("no LLVM: " + why_not());
  Translation t{*api_,
                module.text.c_str(),
                target.triple.c_str(),
                target.cpu.c_str(),
                target.features.c_str(),
                module.text.size(),
                target.machine == Machine::aarch64 ? kTinyCodeModel : kDefaultCodeModel,
                kind};
  Escape here;
  const bool survived = [&] {
    const FatalErrors ours(*api_);
    return survives(run, t, here);
  }();
  stop_before_what_there_is_now_ends();
  if (!survived) {
    give_up(std::string("it ended with a fatal error (") + here.message + ")");
    throw CompileError("LLVM ended with a fatal error: " + std::string(here.message));
  }
  if (!t.object) throw CompileError("LLVM: " + taken(t.message));
  api_->dispose_message(t.message);
  const std::unique_ptr<void, void (*)(Handle)> object(t.object, api_->dispose_buffer);
  return {api_->buffer_start(t.object), api_->buffer_size(t.object)};
}

Binary Llvm::compile(const Module& module, const Target& target) const {
  return link(emitted(module, target, kObjectFile), module.function, target.machine);
}

std::string Llvm::assembler(const Module& module, const Target& target) const {
  return emitted(module, target, kAssembler);
}

}  // namespace tower::compiler
