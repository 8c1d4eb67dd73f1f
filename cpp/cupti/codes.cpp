// A file of cubins: see codes.hpp.
#include "codes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace check {

namespace {

// In the folder of the check, which is private to the user and removed at its end.
int new_file() {
    const char* folder = getenv("XLOGMEM_CHECK");
    int file = folder ? open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    return file >= 0 ? file : memfd_create("cubins", MFD_CLOEXEC);
}

bool write_all(int file, const char* from, u64 bytes, u64 at) {
    while (bytes) {
        ssize_t written = pwrite(file, from, bytes, off_t(at));
        if (written <= 0) return false;
        from += written;
        bytes -= u64(written);
        at += u64(written);
    }
    return true;
}

}  // namespace

void Codes::keep(const char* cubin, u64 bytes) {
    if (file_ < 0) file_ = new_file();
    if (file_ < 0 || end_ + bytes > kMost || !write_all(file_, cubin, bytes, end_)) return;
    cubins_.push_back({end_, bytes});
    end_ += (bytes + 7) / 8 * 8;
}

void Codes::each(const std::string& kernel, const std::function<void(const Code&)>& visit) const {
    if (!end_) return;
    void* all = mmap(nullptr, end_, PROT_READ, MAP_PRIVATE, file_, 0);
    if (all == MAP_FAILED) return;
    for (const Place& cubin : cubins_) {
        Code code = code_of(Bytes(static_cast<const char*>(all) + cubin.begin, cubin.bytes), kernel);
        if (code.text.size()) visit(code);
    }
    munmap(all, end_);
}

}  // namespace check
