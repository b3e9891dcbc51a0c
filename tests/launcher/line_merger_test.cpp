#include "launcher/line_merger.h"

#include <gtest/gtest.h>

namespace deepspeed::launcher {
namespace {

class LineMergerTest : public testing::Test {
 protected:
  LineMergerTest() : a_(merger_.add_stream("[a] ")), b_(merger_.add_stream("[b] ")) {}

  // What the screen gets for `bytes`.
  std::string feed(int stream, std::string_view bytes) {
    std::string out;
    merger_.feed(stream, bytes, out);
    return out;
  }
  std::string show(int stream) {
    std::string out;
    merger_.show_unfinished(stream, out);
    return out;
  }
  std::string close(int stream) {
    std::string out;
    merger_.close_stream(stream, out);
    return out;
  }

  LineMerger merger_;
  int a_;
  int b_;
};

TEST_F(LineMergerTest, WholeLinesOnly) {
  EXPECT_EQ(feed(a_, "one\ntw"), "[a] one\n");
  EXPECT_EQ(feed(b_, "other\n"), "[b] other\n");
  EXPECT_EQ(feed(a_, "o\n\n"), "[a] two\n[a] \n");
  EXPECT_EQ(feed(a_, "rest"), "");
  EXPECT_EQ(close(a_), "[a] rest\n");
  EXPECT_EQ(close(b_), "");
}

TEST_F(LineMergerTest, ByteByByteGivesTheSame) {
  std::string out;
  for (char c : std::string("x\r\ny\rz\n")) out += feed(a_, std::string_view(&c, 1));
  EXPECT_EQ(out, "[a] x\n[a] y\r[a] z\n");
}

TEST_F(LineMergerTest, ABarOverwritesItselfWithItsPrefix) {
  EXPECT_EQ(feed(a_, "\r10%"), "");
  EXPECT_EQ(feed(a_, "\r20%"), "[a] 10%\r");
  EXPECT_EQ(feed(a_, "\r30%\n"), "[a] 20%\r[a] 30%\n");
}

TEST_F(LineMergerTest, AnotherStreamsLineGoesBelowAnOpenOne) {
  EXPECT_EQ(feed(a_, "10%\r20"), "[a] 10%\r");
  EXPECT_EQ(feed(b_, "text\n"), "\n[b] text\n");
  EXPECT_EQ(feed(a_, "%\r"), "");  // may be the first half of a "\r\n"
  EXPECT_EQ(feed(a_, "x\n"), "[a] 20%\r[a] x\n");
}

TEST_F(LineMergerTest, AnUnfinishedBarCanBeShownAndGoesOnWithoutAPrefix) {
  feed(a_, "\r10");
  EXPECT_TRUE(merger_.has_unfinished(a_));
  EXPECT_EQ(show(a_), "[a] 10");
  EXPECT_FALSE(merger_.has_unfinished(a_));
  EXPECT_EQ(show(a_), "");
  EXPECT_EQ(feed(a_, "%\n"), "%\n");
  // ...and with one after another stream came between.
  feed(a_, "\r20");
  show(a_);
  EXPECT_EQ(feed(b_, "y\n"), "\n[b] y\n");
  EXPECT_EQ(feed(a_, "%\n"), "[a] %\n");
}

// A program that buffers its output may write half a line now and the rest much later.
TEST_F(LineMergerTest, OtherUnfinishedLinesWaitForTheirEnd) {
  feed(a_, "half");
  EXPECT_FALSE(merger_.has_unfinished(a_));
  EXPECT_EQ(show(a_), "");
  EXPECT_EQ(feed(b_, "y\n"), "[b] y\n");
  EXPECT_EQ(feed(a_, " whole\nnext"), "[a] half whole\n");
  EXPECT_EQ(show(a_), "");
}

TEST_F(LineMergerTest, AShownBarIsOverwrittenToo) {
  feed(a_, "\r10%");
  EXPECT_EQ(show(a_), "[a] 10%");
  EXPECT_EQ(feed(a_, "\r20%"), "\r");
  EXPECT_EQ(show(a_), "[a] 20%");
  EXPECT_EQ(feed(a_, "\n"), "\n");
  EXPECT_EQ(close(a_), "");
}

TEST_F(LineMergerTest, ClosingEndsAnOpenLine) {
  feed(a_, "10%\rx");
  EXPECT_EQ(show(a_), "[a] x");
  EXPECT_EQ(close(b_), "");
  EXPECT_EQ(close(a_), "\n");
}

TEST_F(LineMergerTest, OwnLines) {
  std::string out;
  merger_.insert_line("hello", out);
  feed(a_, "10%\r1");
  merger_.insert_line("there", out);
  EXPECT_EQ(out, "hello\n\nthere\n");
}

TEST_F(LineMergerTest, AnEndlessLineIsPassedOnInPieces) {
  const std::string half(LineMerger::kLongestLine / 2, 'x');
  EXPECT_EQ(feed(a_, half), "");
  EXPECT_EQ(feed(a_, half), "[a] " + half + half);
  EXPECT_EQ(feed(a_, "end\n"), "end\n");
}

}  // namespace
}  // namespace deepspeed::launcher
