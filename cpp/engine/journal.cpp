// Writing findings as they are made: see journal.hpp.
#include "journal.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>

namespace check {

Output::Output(int file) : file_(file) {
    struct stat found = {};
    full_ = fstat(file, &found) != 0;
    device_ = found.st_dev;
    inode_ = found.st_ino;
}

Output::~Output() {
    if (is_open()) close(file_);
}

bool Output::is_open() const {
    struct stat found;
    return !fstat(file_, &found) && found.st_dev == device_ && found.st_ino == inode_;
}

bool Output::append(const std::string& text) {
    const int error = errno;  // the program's
    full_ = full_ || !is_open();
    for (std::size_t done = 0; !full_ && done < text.size();) {
        ssize_t written = ::write(file_, text.data() + done, text.size() - done);
        if (written > 0)
            done += std::size_t(written);
        else if (written == 0 || errno != EINTR)
            full_ = true;
    }
    errno = error;
    return !full_;
}

Journal::Journal(int file, const Engine& engine, const StreamNotes& notes, FramesOf frames_of)
    : output_(file), engine_(engine), notes_(notes), frames_of_(frames_of) {
    // A page that the disk has no room for would end the process at the first store.
    void* mapped = MAP_FAILED;
    if (!posix_fallocate(file, 0, kPage)) mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return;
    mapped_.begin(mapped, kPage, file);
    page_ = new (mapped) JournalPage;
}

Journal::~Journal() {
    mapped_.end();
    if (page_) munmap(page_, kPage);
}

void Journal::append(const std::string& text) {
    if (mapped_.is_cut() || !output_.append(text))
        page_->failed = 1;
    else
        page_->lines++;
}

void Journal::add_stack(std::string& text, u32 number) {
    if (!number || !frames_of_ || !written_.insert(number).second) return;
    std::unique_ptr<char, decltype(&free)> frames(frames_of_(number), free);
    if (frames) text += "{\"stack\": " + std::to_string(number) + ", \"frames\": " + frames.get() + "}\n";
}

void Journal::write(u64 number, const Finding& finding) {
    std::string text;
    for (const Access* access : {&finding.first, &finding.second}) {
        add_stack(text, access->what.site);
        add_stack(text, access->captured);
        add_stack(text, notes_.of(access->stream).site);
    }
    for (u32 site : {finding.idle.what.site, finding.idle.recorded.site, notes_.of(finding.idle.stream).site})
        add_stack(text, site);
    add_stack(text, finding.allocated.site);
    add_stack(text, finding.freed.site);
    append(text + "{\"number\": " + std::to_string(number) + ", \"finding\": " + as_json(engine_, notes_, finding) +
           "}\n");
}

void Journal::drop(u64 number) { append("{\"number\": " + std::to_string(number) + ", \"finding\": null}\n"); }

void Journal::note(const std::string& notes) {
    if (!mapped_.is_cut()) output_.append("{\"notes\": " + notes + "}\n");
}

void Journal::clear() { append("{\"cleared\": true}\n"); }

}  // namespace check
