// The archive that torch.export.save writes: a zip file whose records are stored as they are (not compressed), all of
// them in one folder, or, as torch before 2.8 has it, in none. It may come from anybody: every offset, size and name is
// checked before something is read, no more is allocated than the file has bytes, and a record's CRC-32 is that of the
// archive's directory.
//
// LibTorch's own reader (caffe2/serialize/inline_container.h) is made for files that are trusted: it compares no CRC
// and allocates what the directory says. And a mapped file shows what others write to it later; so records are read.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tower::exported {

/// What is wrong with a file that was read, with the place in it.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// What a file asks for that Tower does not have.
struct NotSupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Archive {
 public:
  /// Reads the directory of the file at `path`. Throws FileError.
  explicit Archive(const std::string& path);

  /// Whether there is a record of that name, which does not have the archive's folder.
  bool has(const std::string& name) const { return records_.count(name) != 0; }
  /// The names of all records that begin and end so, without these parts.
  std::vector<std::string> names_between(std::string_view begin, std::string_view end) const;
  /// The bytes of a record. Throws FileError.
  std::string text(const std::string& name);
  /// The archive that a record is, whose own records have checksums of their own; none where the record has no bytes.
  /// Throws FileError.
  std::optional<Archive> archive(const std::string& name);
  /// The same in memory for tensors.
  c10::Storage storage(const std::string& name);

 private:
  struct Record {
    uint64_t header, size;
    uint32_t crc;
  };

  Archive(const std::string& path, uint64_t begin, uint64_t size);
  void read_directory();
  void read_bytes(uint64_t offset, uint64_t size, char* to, const std::string& what);
  void read_record(const std::string& name, const Record& record, char* to);
  // Where its bytes are, once its header is what the directory says.
  uint64_t begin_of(const std::string& name, const Record& record);
  const Record& find(const std::string& name) const;

  std::string path_;
  std::ifstream file_;
  uint64_t begin_ = 0, size_ = 0;  // in the file
  std::string folder_;             // with the slash; empty: there is none
  std::map<std::string, Record> records_;
};

}  // namespace tower::exported
