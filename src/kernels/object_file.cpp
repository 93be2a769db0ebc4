#include "kernels/object_file.h"

#include <c10/util/Exception.h>
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace tower::compiler {
namespace {

constexpr size_t kLine = 64;  // alignment of functions, and of the constants in them
enum Section : uint16_t { kNull, kText, kRelocations, kSymbols, kSymbolNames, kSectionNames, kStack, kSections };

template <class T>
std::string_view as_bytes(const std::vector<T>& records) {
  return {reinterpret_cast<const char*>(records.data()), records.size() * sizeof(T)};
}

// Names, one behind the other.
class Names {
 public:
  Elf64_Word add(std::string_view name) {
    const auto at = static_cast<Elf64_Word>(text_.size());
    text_.append(name);
    text_ += '\0';
    return at;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_ = std::string(1, '\0');
};

// A jump to an import, by way of the place behind it, and what it becomes: one to the function itself, whose distance
// the linker writes.
struct Jump {
  std::string_view begin;
  uint32_t becomes;
  size_t bytes, distance_at;  // of what it becomes, and where the linker's relocation is in it
  Elf64_Xword relocation;
  Elf64_Sxword addend;
};
Jump jump_of(Machine machine) {
  if (machine == Machine::x86_64) return {{"\xff\x25", 2}, 0xe9, 1, 1, R_X86_64_PLT32, -4};
  return {{"\x50\0\0\x58", 4}, 0x14000000, 4, 0, R_AARCH64_JUMP26, 0};
}

class ObjectWriter {
 public:
  explicit ObjectWriter(Machine machine) : machine_(machine), jump_(jump_of(machine)) {}

  void add(const NamedCode& function) {
    text_.resize((text_.size() + kLine - 1) / kLine * kLine, '\xcc');
    const size_t start = text_.size();
    text_ += function.binary.bytes;
    Elf64_Sym symbol = global(function.name, STT_FUNC);
    symbol.st_other = STV_HIDDEN;
    symbol.st_shndx = kText;
    symbol.st_value = start + function.binary.entry;
    symbol.st_size = function.binary.bytes.size() - function.binary.entry;
    symbols_.push_back(symbol);
    for (const Binary::Import& import : function.binary.imports) {
      const size_t jump = start + import.place - kJumpBytes;
      TORCH_INTERNAL_ASSERT(import.place >= kJumpBytes && text_.compare(jump, jump_.begin.size(), jump_.begin) == 0);
      std::memset(text_.data() + jump, 0, kJumpBytes);
      std::memcpy(text_.data() + jump, &jump_.becomes, jump_.bytes);
      Elf64_Rela relocation{};
      relocation.r_offset = jump + jump_.distance_at;
      relocation.r_info = ELF64_R_INFO(static_cast<Elf64_Xword>(import_of(import.name)), jump_.relocation);
      relocation.r_addend = jump_.addend;
      relocations_.push_back(relocation);
    }
  }

  std::string write() {
    section(kText, ".text", SHT_PROGBITS, text_, SHF_ALLOC | SHF_EXECINSTR, kLine);
    Elf64_Shdr& relocations = section(kRelocations, ".rela.text", SHT_RELA, as_bytes(relocations_), SHF_INFO_LINK, 8);
    relocations.sh_link = kSymbols;
    relocations.sh_info = kText;
    relocations.sh_entsize = sizeof(Elf64_Rela);
    Elf64_Shdr& symbols = section(kSymbols, ".symtab", SHT_SYMTAB, as_bytes(symbols_), 0, 8);
    symbols.sh_link = kSymbolNames;
    symbols.sh_info = 1;  // the first that others see
    symbols.sh_entsize = sizeof(Elf64_Sym);
    section(kSymbolNames, ".strtab", SHT_STRTAB, symbol_names_.text(), 0, 1);
    section(kStack, ".note.GNU-stack", SHT_PROGBITS, "", 0, 1);  // there: the stack need not be executable
    // Its own name is among them.
    const Elf64_Word own = section_names_.add(".shstrtab");
    section(kSectionNames, own, SHT_STRTAB, section_names_.text(), 0, 1);

    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_REL;
    header.e_machine = machine_ == Machine::x86_64 ? EM_X86_64 : EM_AARCH64;
    header.e_version = EV_CURRENT;
    header.e_ehsize = sizeof(Elf64_Ehdr);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = kSections;
    header.e_shstrndx = kSectionNames;
    align(8);
    header.e_shoff = file_.size();
    file_.append(as_bytes(sections_));
    std::memcpy(file_.data(), &header, sizeof header);
    return std::move(file_);
  }

 private:
  Elf64_Sym global(const std::string& name, unsigned char type) {
    Elf64_Sym symbol{};
    symbol.st_name = symbol_names_.add(name);
    symbol.st_info = static_cast<unsigned char>(ELF64_ST_INFO(STB_GLOBAL, type));
    return symbol;
  }

  size_t import_of(const std::string& name) {
    const auto [entry, is_new] = imports_.emplace(name, symbols_.size());
    if (is_new) symbols_.push_back(global(name, STT_NOTYPE));
    return entry->second;
  }

  void align(size_t to) { file_.resize((file_.size() + to - 1) / to * to, '\0'); }

  Elf64_Shdr& section(Section number, const char* name, Elf64_Word type, std::string_view contents, Elf64_Xword flags,
                      size_t alignment) {
    return section(number, section_names_.add(name), type, contents, flags, alignment);
  }
  Elf64_Shdr& section(Section number, Elf64_Word name, Elf64_Word type, std::string_view contents, Elf64_Xword flags,
                      size_t alignment) {
    align(alignment);
    Elf64_Shdr& header = sections_[number];
    header.sh_name = name;
    header.sh_type = type;
    header.sh_flags = flags;
    header.sh_offset = file_.size();
    header.sh_size = contents.size();
    header.sh_addralign = alignment;
    file_.append(contents);
    return header;
  }

  const Machine machine_;
  const Jump jump_;
  std::string text_, file_ = std::string(sizeof(Elf64_Ehdr), '\0');
  Names symbol_names_, section_names_;
  std::vector<Elf64_Sym> symbols_ = std::vector<Elf64_Sym>(1);
  std::vector<Elf64_Rela> relocations_;
  std::vector<Elf64_Shdr> sections_ = std::vector<Elf64_Shdr>(kSections);
  std::map<std::string, size_t> imports_;
};

}  // namespace

std::string object_file(const std::vector<NamedCode>& functions, Machine machine) {
  ObjectWriter writer(machine);
  for (const NamedCode& function : functions) writer.add(function);
  return writer.write();
}

}  // namespace tower::compiler
