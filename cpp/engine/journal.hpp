// Findings in a file as they are made: a process that a signal, a crash or _exit() ends takes none of them along.
//
// The file begins with a page that is mapped (JournalPage): a store is enough for what changes often, and the page says
// later what the process had not judged yet. Lines of JSON follow, which are written when a finding is new or has
// changed: that is seldom. A finding has a number, and the last line of a number counts:
//     {"stack": number, "frames": …}         of a place in the program, before the first finding that names it
//     {"number": number, "finding": …}       as in records.hpp; null: it is a finding no more
//     {"cleared": true}                      all findings before this line are forgotten
//     {"notes": …}                           at the end, the front end's own: what the findings may lack
// xlogmem/check/processes.py reads this, and knows by the mark and the number of lines that the file is whole. In a file
// that was truncated, lines would lie where the page was: nothing is written there any more, and it stays too short.
#pragma once

#include "mapped_file.hpp"
#include "records.hpp"

#include <unordered_set>

namespace check {

// A file that is appended to as long as the descriptor is that file's: a program that becomes a daemon closes
// descriptors that it does not know, and their numbers are given to files of its own.
class Output {
  public:
    explicit Output(int file);  // which is closed at the end
    ~Output();
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    // False: not all of the text could be written, and nothing is written from here on.
    bool append(const std::string& text);
    bool is_open() const;

  private:
    int file_;
    bool full_ = false;
    u64 device_ = 0, inode_ = 0;
};

class Journal {
  public:
    static constexpr u64 kPage = 4096;
    // The frames of a place in the program, as JSON; to be freed with free(). nullptr: there is no memory.
    using FramesOf = char* (*)(u32 number);

    Journal(int file, const Engine& engine, const StreamNotes& notes, FramesOf frames_of);
    ~Journal();
    JournalPage* page() const { return page_; }
    void write(u64 number, const Finding& finding);
    void drop(u64 number);
    void clear();
    void note(const std::string& notes);

  private:
    Output output_;
    JournalPage* page_ = nullptr;
    xlogmem_mapped_file mapped_;
    const Engine& engine_;
    const StreamNotes& notes_;
    FramesOf frames_of_;
    std::unordered_set<u32> written_;  // stacks

    void append(const std::string& text);
    void add_stack(std::string& text, u32 number);
};

}  // namespace check
