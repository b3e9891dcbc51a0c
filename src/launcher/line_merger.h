// Several streams of text onto one screen, line by line, each line with its stream's prefix.
//
// A line ends with '\n', or with '\r' as progress bars do it: such a line stays open, and the same stream's next line overwrites it.
// Another stream's line goes below an open line, never into it. "\r\n" is '\n'. Pure: bytes in, bytes out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::launcher {

class LineMerger {
 public:
  // A line without an end is cut after this many bytes.
  static constexpr size_t kLongestLine = 1 << 20;

  // Returns the number of the new stream.
  int add_stream(std::string prefix);

  // Appends to `out` what the screen gets for `bytes` of `stream`; an unfinished line waits.
  void feed(int stream, std::string_view bytes, std::string& out);
  // Shows the unfinished state of a bar, as nothing came for a while: bars are mostly drawn with the '\r' in front. Other unfinished
  // lines keep waiting, since programs that buffer their output write it in blocks that end anywhere.
  void show_unfinished(int stream, std::string& out);
  bool has_unfinished(int stream) const { return streams_[stream].is_bar && !streams_[stream].pending.empty(); }
  // The stream ended: its unfinished line gets an end.
  void close_stream(int stream, std::string& out);
  // A line of the launcher's own, without '\n'.
  void insert_line(std::string_view line, std::string& out);

 private:
  struct Stream {
    std::string prefix;
    std::string pending;           // unfinished line, not shown yet
    bool carriage_return = false;  // a '\r' came; whether it belongs to a "\r\n" is not known yet
    bool is_bar = false;           // the last line ended with '\r'
  };

  void end_line(int stream, char end, std::string& out);
  void put(int stream, std::string_view text, std::string& out);

  std::vector<Stream> streams_;
  int open_ = -1;           // stream whose line the cursor stands in; -1: at the start of an empty line
  bool overwrite_ = false;  // the open line ended with '\r': the cursor is at its start
};

}  // namespace deepspeed::launcher
