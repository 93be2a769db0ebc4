#include "kernels/machine_code.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/compile_error.h"

namespace tower::compiler {

// ---- linking -------------------------------------------------------------------------------------------------------

namespace {

constexpr size_t kWidest = 64;  // alignment of constants

// A part of an object, whose offsets are taken for what they are.
template <class T>
std::vector<T> records(std::string_view object, size_t offset, size_t count) {
  if (offset > object.size() || count > (object.size() - offset) / sizeof(T))
    throw CompileError("LLVM: the object ends too early");
  std::vector<T> result(count);
  std::memcpy(result.data(), object.data() + offset, count * sizeof(T));
  return result;
}

class Linker {
 public:
  Linker(std::string_view object, Machine machine) : object_(object), machine_(machine) {
    header_ = records<Elf64_Ehdr>(object, 0, 1)[0];
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 || header_.e_ident[EI_CLASS] != ELFCLASS64 ||
        header_.e_machine != (machine == Machine::x86_64 ? EM_X86_64 : EM_AARCH64) || header_.e_type != ET_REL)
      throw CompileError("LLVM: it gave no object for the machine");
    sections_ = records<Elf64_Shdr>(object, header_.e_shoff, header_.e_shnum);
    names_ = contents(sections_.at(header_.e_shstrndx));
  }

  Binary link(const std::string& function) {
    place();
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_REL) refuse("relocations without addends");
      if (section.sh_type == SHT_SYMTAB) read_symbols(section);
    }
    for (const Elf64_Shdr& section : sections_)
      if (section.sh_type == SHT_RELA && places_.at(section.sh_info)) relocate(section);
    const auto found = std::find_if(symbols_.begin(), symbols_.end(), [&](const Elf64_Sym& s) {
      return s.st_shndx != SHN_UNDEF && name_of(s) == function;
    });
    if (found == symbols_.end()) throw CompileError("LLVM: the object has no function " + function);
    binary_.entry = address_of(*found);
    return std::move(binary_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    throw CompileError("LLVM: its object has " + what + ", which is not understood");
  }

  std::string_view contents(const Elf64_Shdr& section) const {
    if (section.sh_offset > object_.size() || section.sh_size > object_.size() - section.sh_offset)
      throw CompileError("LLVM: the object ends too early");
    return object_.substr(section.sh_offset, section.sh_size);
  }
  static std::string text_at(std::string_view names, size_t offset) {
    return std::string(names.substr(std::min(offset, names.size()))).c_str();
  }
  std::string name_of(const Elf64_Sym& symbol) const { return text_at(symbol_names_, symbol.st_name); }

  // Code and constants, one behind the other. Tables for unwinding are left out: nothing is thrown through a kernel.
  void place() {
    for (const Elf64_Shdr& section : sections_) {
      const std::string name = text_at(names_, section.sh_name);
      std::optional<size_t>& at = places_.emplace_back();
      if (!(section.sh_flags & SHF_ALLOC) || name == ".eh_frame" || section.sh_size == 0) continue;
      if (section.sh_type != SHT_PROGBITS || section.sh_flags & SHF_WRITE || section.sh_addralign > kWidest)
        refuse("a section " + name);
      align(std::max<size_t>(section.sh_addralign, 1));
      at = binary_.bytes.size();
      binary_.bytes += contents(section);
    }
  }
  void align(size_t to) { binary_.bytes.resize((binary_.bytes.size() + to - 1) / to * to, '\0'); }

  void read_symbols(const Elf64_Shdr& section) {
    symbols_ = records<Elf64_Sym>(object_, section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
    symbol_names_ = contents(sections_.at(section.sh_link));
  }

  size_t address_of(const Elf64_Sym& symbol) const {
    const std::optional<size_t> section = symbol.st_shndx < places_.size() ? places_[symbol.st_shndx] : std::nullopt;
    if (!section) refuse("a symbol " + name_of(symbol) + " outside of its sections");
    return *section + symbol.st_value;
  }

  // A jump to what an import's place holds, behind everything else.
  size_t jump_to(const std::string& name) {
    const auto known = std::find_if(jumps_.begin(), jumps_.end(), [&](const auto& jump) { return jump.first == name; });
    if (known != jumps_.end()) return known->second;
    align(8);
    const size_t jump = binary_.bytes.size();
    // jmp *2(%rip), two bytes behind it; ldr x16, 8; br x16.
    binary_.bytes.append(machine_ == Machine::x86_64 ? "\xff\x25\x02\0\0\0\xcc\xcc" : "\x50\0\0\x58\0\x02\x1f\xd6",
                         kJumpBytes);
    binary_.imports.push_back({name, binary_.bytes.size()});
    binary_.bytes.append(8, '\0');
    jumps_.emplace_back(name, jump);
    return jump;
  }

  void relocate(const Elf64_Shdr& table) {
    const size_t section = *places_[table.sh_info], size = sections_[table.sh_info].sh_size;
    for (const Elf64_Rela& r : records<Elf64_Rela>(object_, table.sh_offset, table.sh_size / sizeof(Elf64_Rela))) {
      const auto type = ELF64_R_TYPE(r.r_info);
      const Elf64_Sym& symbol = symbols_.at(ELF64_R_SYM(r.r_info));
      const bool outside = symbol.st_shndx == SHN_UNDEF;
      const std::optional<Field> field = machine_ == Machine::x86_64 ? field_of_x86(type) : field_of_arm(type);
      if (!field || (outside && !field->calls))
        refuse("a relocation of type " + std::to_string(type) + " to '" + name_of(symbol) + "'");
      if (r.r_offset > size || size - r.r_offset < 4) refuse("a relocation outside of its section");
      const size_t place = section + r.r_offset;
      const auto target = static_cast<int64_t>(outside ? jump_to(name_of(symbol)) : address_of(symbol));
      write_distance(*field, place, target + r.r_addend - static_cast<int64_t>(place));
    }
  }

  // How 32 bits have a distance: how many bits of it, without `dropped` at its end, which are none, from which bit on.
  // An instruction that takes an address to the byte has its last two bits somewhere else.
  struct Field {
    int bits = 32, dropped = 0, first = 0;
    bool calls = false, apart = false;
  };
  static std::optional<Field> field_of_x86(uint64_t type) {
    if (type == R_X86_64_PC32) return Field{};
    if (type == R_X86_64_PLT32) return Field{.calls = true};
    return std::nullopt;
  }
  static std::optional<Field> field_of_arm(uint64_t type) {
    switch (type) {
      case R_AARCH64_PREL32:
        return Field{};
      case R_AARCH64_ADR_PREL_LO21:
        return Field{.bits = 19, .dropped = 2, .first = 5, .apart = true};
      case R_AARCH64_LD_PREL_LO19:
        return Field{.bits = 19, .dropped = 2, .first = 5};
      case R_AARCH64_CALL26:
      case R_AARCH64_JUMP26:
        return Field{.bits = 26, .dropped = 2, .first = 0, .calls = true};
      default:
        return std::nullopt;
    }
  }

  void write_distance(const Field& field, size_t place, int64_t distance) {
    constexpr uint32_t kLastTwo = 3, kPlaceOfLastTwo = 29;
    const int64_t units = distance >> field.dropped, most = int64_t{1} << (field.bits - 1);
    if (units < -most || units >= most) refuse("a distance of " + std::to_string(distance) + " bytes");
    const auto last = static_cast<uint32_t>(distance) & kLastTwo;
    if (field.dropped > 0 && !field.apart && last != 0) refuse("a distance that is no multiple of 4");
    const auto mask = static_cast<uint32_t>((uint64_t{1} << field.bits) - 1);
    uint32_t word;
    std::memcpy(&word, binary_.bytes.data() + place, sizeof word);
    word = (word & ~(mask << field.first)) | ((static_cast<uint32_t>(units) & mask) << field.first);
    if (field.apart) word = (word & ~(kLastTwo << kPlaceOfLastTwo)) | (last << kPlaceOfLastTwo);
    std::memcpy(binary_.bytes.data() + place, &word, sizeof word);
  }

  std::string_view object_, names_, symbol_names_;
  const Machine machine_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<std::optional<size_t>> places_;  // of sections
  std::vector<Elf64_Sym> symbols_;
  std::vector<std::pair<std::string, size_t>> jumps_;
  Binary binary_;
};

}  // namespace

Binary link(std::string_view object, const std::string& function, Machine machine) {
  try {
    return Linker(object, machine).link(function);
  } catch (const std::out_of_range&) {
    throw CompileError("LLVM: the object refers to what is not in it");
  }
}

// ---- bytes ---------------------------------------------------------------------------------------------------------

void Binary::write(ByteWriter& out) const {
  out.text(bytes);
  out.number(static_cast<int64_t>(entry));
  out.list(imports, [&](const Import& import) {
    out.text(import.name);
    out.number(static_cast<int64_t>(import.place));
  });
}

Binary Binary::read(ByteReader& in) {
  Binary binary;
  binary.bytes = in.text();
  binary.entry = in.index(binary.bytes.size());
  for (size_t n = in.count(); n-- > 0;) {
    Import import{std::string(in.text()), in.index(binary.bytes.size())};
    if (binary.bytes.size() - import.place < sizeof(void*)) ByteReader::fail();
    binary.imports.push_back(std::move(import));
  }
  return binary;
}

// ---- execution -----------------------------------------------------------------------------------------------------

Code::Code(const Binary& binary) : size_(binary.bytes.size()), entry_(binary.entry), imports_(binary.imports) {
  std::string bytes = binary.bytes;
  for (const Binary::Import& import : imports_) {
    void* address = dlsym(RTLD_DEFAULT, import.name.c_str());
    if (!address) throw CompileError("there is no function " + import.name);
    std::memcpy(bytes.data() + import.place, &address, sizeof address);
  }
  // Never writable and executable at once.
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw CompileError("there is no memory for machine code");
  memory_ = static_cast<char*>(memory);
  std::memcpy(memory_, bytes.data(), size_);
  // A processor of Arm's reads instructions past what was just written.
  __builtin___clear_cache(memory_, memory_ + size_);
  if (mprotect(memory_, size_, PROT_READ | PROT_EXEC) != 0) {
    munmap(memory_, size_);
    throw CompileError("the system does not allow machine code to be made while a program runs");
  }
}

Code::~Code() { munmap(memory_, size_); }

Binary Code::binary() const {
  Binary binary{std::string(memory_, size_), entry_, imports_};
  for (const Binary::Import& import : imports_) std::memset(binary.bytes.data() + import.place, 0, sizeof(void*));
  return binary;
}

}  // namespace tower::compiler
