// Machine code of one function: linked once, where it was generated, into bytes that are right at any address, and from
// then on mapped and called. What a function calls outside of itself goes through places in the bytes that are filled
// with addresses when they are mapped; so a process that has the bytes needs neither LLVM nor a linker.
//
//   const Binary binary = link(object, "f");
//   const Code code(binary);
//   reinterpret_cast<void (*)()>(code.address())();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"

namespace tower::compiler {

/// Machines that code is linked for.
enum class Machine : std::uint8_t { x86_64, aarch64 };

struct Binary {
  struct Import {
    std::string name;
    size_t place;  // of its address
  };
  std::string bytes;  // code and constants
  size_t entry = 0;
  std::vector<Import> imports;

  void write(ByteWriter& out) const;
  /// Throws a BytesError.
  static Binary read(ByteReader& in);
};

/// Bytes of a jump to what an import is, which stands in front of the place of its address.
inline constexpr std::size_t kJumpBytes = 8;

/// The function of an ELF object for `machine`, as compilers write it for position-independent code; for aarch64, in
/// the "tiny" model, where all is within a MiB. Throws a CompileError where there is something in it that is not
/// understood.
Binary link(std::string_view object, const std::string& function, Machine machine = Machine::x86_64);

/// Of this machine, executable until it is destroyed.
class Code {
 public:
  /// Throws a CompileError where the process has no function of an import's name.
  explicit Code(const Binary& binary);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  void* address() const { return memory_ + entry_; }
  size_t bytes() const { return size_; }
  /// What it was made of.
  Binary binary() const;

 private:
  char* memory_;
  size_t size_, entry_;
  std::vector<Binary::Import> imports_;
};

}  // namespace tower::compiler
