#include "launcher/line_merger.h"

namespace deepspeed::launcher {

int LineMerger::add_stream(std::string prefix) {
  streams_.push_back({std::move(prefix), "", false, false});
  return static_cast<int>(streams_.size()) - 1;
}

void LineMerger::put(int stream, std::string_view text, std::string& out) {
  if (open_ >= 0 && open_ != stream) {
    out += '\n';
    open_ = -1;
  }
  if (open_ < 0 || overwrite_) out += streams_[stream].prefix;
  out += text;
  open_ = stream;
  overwrite_ = false;
}

void LineMerger::end_line(int stream, char end, std::string& out) {
  Stream& source = streams_[stream];
  const bool is_open = open_ == stream && !overwrite_;
  source.is_bar = end == '\r';
  if (end == '\r') {
    // A bare '\r' at the start of a line, as bars print it first, shows nothing.
    if (source.pending.empty() && !is_open) return;
    put(stream, source.pending, out);
    out += '\r';
    overwrite_ = true;
  } else {
    // A bar's last state is finished by a bare '\n': then it is only the line end that is missing.
    if (!(source.pending.empty() && open_ == stream)) put(stream, source.pending, out);
    out += '\n';
    open_ = -1;
    overwrite_ = false;
  }
  source.pending.clear();
}

void LineMerger::feed(int stream, std::string_view bytes, std::string& out) {
  Stream& source = streams_[stream];
  while (!bytes.empty()) {
    if (source.carriage_return) {
      source.carriage_return = false;
      const bool is_pair = bytes.front() == '\n';
      end_line(stream, is_pair ? '\n' : '\r', out);
      if (is_pair) bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    source.pending += bytes.substr(0, end);
    if (source.pending.size() >= kLongestLine) {
      put(stream, source.pending, out);
      source.pending.clear();
    }
    if (end == std::string_view::npos) return;
    if (bytes[end] == '\n') {
      end_line(stream, '\n', out);
    } else {
      source.carriage_return = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineMerger::show_unfinished(int stream, std::string& out) {
  Stream& source = streams_[stream];
  if (!has_unfinished(stream)) return;
  put(stream, source.pending, out);
  source.pending.clear();
}

void LineMerger::close_stream(int stream, std::string& out) {
  Stream& source = streams_[stream];
  source.carriage_return = false;
  if (!source.pending.empty() || open_ == stream) end_line(stream, '\n', out);
}

void LineMerger::insert_line(std::string_view line, std::string& out) {
  if (open_ >= 0) out += '\n';
  open_ = -1;
  overwrite_ = false;
  out += line;
  out += '\n';
}

}  // namespace deepspeed::launcher
