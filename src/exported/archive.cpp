// A zip file from its end: the end record (and, where numbers have 64 bits, another one before it) says where the
// directory is; the directory has for each record its name, size, CRC, and where its header is; behind that header the
// bytes lie. The format is that of PKWARE's APPNOTE.TXT.
#include "exported/archive.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "exported/crc32.h"

namespace tower::exported {
namespace {

constexpr uint64_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kEntrySize = 46, kHeaderSize = 30;
constexpr uint32_t kEndMark = 0x06054b50, kLocatorMark = 0x07064b50, kEnd64Mark = 0x06064b50, kEntryMark = 0x02014b50,
                   kHeaderMark = 0x04034b50;
constexpr uint64_t kLongestComment = 0xffff;
constexpr uint32_t kIn64Bits = 0xffffffff;  // a number that stands elsewhere, in 64 bits

/// Little-endian numbers at places of a part of the file.
class Bytes {
 public:
  Bytes(std::string_view bytes, const char* what) : bytes_(bytes), what_(what) {}

  template <class T>
  T at(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) fail();
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  std::string_view part(uint64_t offset, uint64_t size) const {
    if (offset > bytes_.size() || bytes_.size() - offset < size) fail();
    return bytes_.substr(offset, size);
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  [[noreturn]] void fail() const { throw FileError(std::string(what_) + " is cut off"); }
  std::string_view bytes_;
  const char* what_;
};

/// The numbers of a directory's entry that stand in its extra field, in this order, because they need 64 bits.
void read_long_numbers(const Bytes& extra, std::initializer_list<uint64_t*> numbers) {
  if (std::none_of(numbers.begin(), numbers.end(), [](const uint64_t* n) { return *n == kIn64Bits; })) return;
  for (uint64_t at = 0; at + 4 <= extra.size();) {
    const uint64_t kind = extra.at<uint16_t>(at), size = extra.at<uint16_t>(at + 2);
    at += 4;
    if (kind == 1) {
      const Bytes wide(extra.part(at, size), "an entry of the archive's directory");
      uint64_t next = 0;
      for (uint64_t* number : numbers) {
        if (*number != kIn64Bits) continue;
        *number = wide.at<uint64_t>(next);
        next += sizeof(uint64_t);
      }
      return;
    }
    at += size;
  }
}

bool leaves_the_archive(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != name.npos || name.find('\0') != name.npos) return true;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

Archive::Archive(const std::string& path) : path_(path), file_(path, std::ios::binary) {
  if (!file_ || !file_.seekg(0, std::ios::end)) throw FileError("it cannot be read");
  const std::streamoff end = file_.tellg();
  if (end < 0) throw FileError("it cannot be read");
  size_ = static_cast<uint64_t>(end);
  read_directory();
}

Archive::Archive(const std::string& path, uint64_t begin, uint64_t size)
    : path_(path), file_(path, std::ios::binary), begin_(begin), size_(size) {
  if (!file_) throw FileError("it cannot be read");
  read_directory();
}

void Archive::read_bytes(uint64_t offset, uint64_t size, char* to, const std::string& what) {
  if (offset > size_ || size > size_ - offset) throw FileError(what + " lies outside of the file");
  file_.clear();
  if (size > 0 && (!file_.seekg(static_cast<std::streamoff>(begin_ + offset)) ||
                   !file_.read(to, static_cast<std::streamsize>(size))))
    throw FileError(what + " cannot be read");
}

void Archive::read_directory() {
  const auto bytes = [&](uint64_t offset, uint64_t size, const char* what) {
    if (offset > size_ || size > size_ - offset) throw FileError(std::string(what) + " lies outside of the file");
    std::string part(size, '\0');
    read_bytes(offset, size, part.data(), what);
    return part;
  };
  if (size_ < kEndSize)
    throw FileError("it is no archive of torch.export.save: it has " + std::to_string(size_) + " bytes");

  const uint64_t tail_size = std::min(size_, kEndSize + kLongestComment), tail_begin = size_ - tail_size;
  const std::string tail = bytes(tail_begin, tail_size, "the archive's end");
  uint64_t end = tail_size - kEndSize;
  while (Bytes(tail, "the archive's end").at<uint32_t>(end) != kEndMark)
    if (end-- == 0) throw FileError("it is no archive of torch.export.save: a zip file's end is missing");
  const Bytes last(std::string_view(tail).substr(end), "the archive's end");
  uint64_t count = last.at<uint16_t>(10), directory_size = last.at<uint32_t>(12), directory = last.at<uint32_t>(16);
  end += tail_begin;
  if (end >= kLocatorSize) {
    const std::string locator = bytes(end - kLocatorSize, kLocatorSize, "the archive's end");
    const Bytes fields(locator, "the archive's end");
    if (fields.at<uint32_t>(0) == kLocatorMark) {
      const std::string end64 = bytes(fields.at<uint64_t>(8), kEnd64Size, "the archive's end of 64 bits");
      const Bytes wide(end64, "the archive's end of 64 bits");
      if (wide.at<uint32_t>(0) != kEnd64Mark) throw FileError("the archive's end of 64 bits is none");
      count = wide.at<uint64_t>(32);
      directory_size = wide.at<uint64_t>(40);
      directory = wide.at<uint64_t>(48);
    }
  }

  const std::string all = bytes(directory, directory_size, "the archive's directory");
  const Bytes entries(all, "the archive's directory");
  uint64_t at = 0, bytes_of_records = 0;
  for (uint64_t n = 0; n < count; ++n) {
    if (entries.at<uint32_t>(at) != kEntryMark)
      throw FileError("entry " + std::to_string(n) + " of the archive's directory is none");
    const uint64_t method = entries.at<uint16_t>(at + 10), name_size = entries.at<uint16_t>(at + 28),
                   extra_size = entries.at<uint16_t>(at + 30), comment_size = entries.at<uint16_t>(at + 32);
    uint64_t stored = entries.at<uint32_t>(at + 20), size = entries.at<uint32_t>(at + 24),
             header = entries.at<uint32_t>(at + 42);
    const uint32_t crc = entries.at<uint32_t>(at + 16);
    const std::string name(entries.part(at + kEntrySize, name_size));
    read_long_numbers(
        Bytes(entries.part(at + kEntrySize + name_size, extra_size), "an entry of the archive's directory"),
        {&size, &stored, &header});
    at += kEntrySize + name_size + extra_size + comment_size;

    if (leaves_the_archive(name)) throw FileError("a record's name leaves the archive: \"" + name + "\"");
    const size_t slash = name.find('/');
    if (n == 0 && slash != name.npos) folder_ = name.substr(0, slash + 1);
    if (name.compare(0, folder_.size(), folder_) != 0)
      throw FileError("record \"" + name + "\" is not in the folder of the others, " + folder_);
    if (method != 0) throw FileError("record \"" + name + "\" is compressed, which torch.export.save does not do");
    if (stored != size) throw FileError("record \"" + name + "\" has two sizes");
    // Together they are no more than the file: also what is read several times is bounded.
    if (size > size_ - bytes_of_records) throw FileError("record \"" + name + "\" is larger than the file");
    bytes_of_records += size;
    if (!records_.emplace(name.substr(folder_.size()), Record{header, size, crc}).second)
      throw FileError("record \"" + name + "\" is there twice");
  }
}

std::vector<std::string> Archive::names_between(std::string_view begin, std::string_view end) const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) {
    if (name.size() < begin.size() + end.size() || name.compare(0, begin.size(), begin) != 0) continue;
    if (name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
    names.push_back(name.substr(begin.size(), name.size() - begin.size() - end.size()));
  }
  return names;
}

const Archive::Record& Archive::find(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) throw FileError("record \"" + name + "\" is missing");
  return found->second;
}

uint64_t Archive::begin_of(const std::string& name, const Record& record) {
  const std::string what = "record \"" + name + "\"";
  std::array<char, kHeaderSize> header;
  read_bytes(record.header, header.size(), header.data(), what);
  const Bytes fields(std::string_view(header.data(), header.size()), "a record's header");
  const uint64_t name_size = fields.at<uint16_t>(26), extra_size = fields.at<uint16_t>(28);
  if (fields.at<uint32_t>(0) != kHeaderMark || name_size != folder_.size() + name.size())
    throw FileError(what + " is not where the directory says");
  std::string own(name_size, '\0');
  read_bytes(record.header + kHeaderSize, name_size, own.data(), what);
  if (own != folder_ + name) throw FileError(what + " is not where the directory says");
  return record.header + kHeaderSize + name_size + extra_size;
}

void Archive::read_record(const std::string& name, const Record& record, char* to) {
  const std::string what = "record \"" + name + "\"";
  read_bytes(begin_of(name, record), record.size, to, what);
  // A writer that computes none (torch.serialization.set_crc32_options) leaves zero.
  if (record.crc != 0 && crc32_of(to, record.size) != record.crc)
    throw FileError(what + " is damaged: its CRC-32 is another");
}

std::string Archive::text(const std::string& name) {
  const Record& record = find(name);
  std::string bytes(record.size, '\0');
  read_record(name, record, bytes.data());
  return bytes;
}

std::optional<Archive> Archive::archive(const std::string& name) {
  const Record& record = find(name);
  if (record.size == 0) return std::nullopt;
  const uint64_t begin = begin_of(name, record);
  if (begin > size_ || record.size > size_ - begin) throw FileError("record \"" + name + "\" lies outside of the file");
  return Archive(path_, begin_ + begin, record.size);
}

c10::Storage Archive::storage(const std::string& name) {
  const Record& record = find(name);
  c10::DataPtr memory = c10::GetCPUAllocator()->allocate(record.size);
  read_record(name, record, static_cast<char*>(memory.get()));
  return c10::Storage(c10::Storage::use_byte_size_t(), record.size, std::move(memory), /*allocator=*/nullptr,
                      /*resizable=*/false);
}

}  // namespace tower::exported
