// The index of blocks: see blocks.hpp.
#include "blocks.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace check {

// The first block of the level that ends behind `at`.
Blocks::Level::iterator Blocks::first(Level& level, u64 at) {
    auto place = level.upper_bound(at);
    if (place == level.begin()) return place;
    auto before = std::prev(place);
    return before->second->end > at ? before : place;
}

Block* Blocks::in(Level& level, u64 at) {
    auto place = level.upper_bound(at);
    return place != level.begin() && std::prev(place)->second->holds(at) ? std::prev(place)->second : nullptr;
}

Block* Blocks::search(u64 at) {
    Block* piece = in(pieces_, at);
    return piece ? piece : in(wholes_, at);
}

Block* Blocks::whole(u64 at) { return in(wholes_, at); }

Block* Blocks::at(u64 begin, bool piece) {
    Level& level = piece ? pieces_ : wholes_;
    auto found = level.find(begin);
    return found == level.end() ? nullptr : found->second;
}

Block* Blocks::make() {
    if (!spare_.empty()) {
        Block* block = spare_.back();
        spare_.pop_back();
        Shadow room = std::move(block->shadow);
        *block = Block{};
        block->shadow = std::move(room);
        return block;
    }
    all_.push_back(std::make_unique<Block>());
    return all_.back().get();
}

// With an empty range, so that `recent_` does not find it.
void Blocks::retire(Block* block) {
    block->begin = block->end = 0;
    block->shadow.recycle();
    spare_.push_back(block);
}

Block* Blocks::add(u64 begin, u64 end, bool piece, Place place) {
    Block* block = make();
    block->place = place;
    block->begin = begin;
    block->end = end;
    block->piece = piece;
    block->generation = ++generation_;
    block->shadow.start(begin, end);
    (piece ? pieces_ : wholes_)[begin] = block;
    (place == Place::Device ? device_ : host_).include(begin, end);
    return block;
}

// A part of a freed piece that was not handed out again yet: its next owner is compared with the same accesses.
void Blocks::keep_rest(const Block& old, u64 begin, u64 end) {
    Block* rest = make();
    *rest = old;
    rest->begin = begin;
    rest->end = end;
    pieces_[begin] = rest;
}

void Blocks::forget(u64 begin, u64 end, bool piece) {
    Level& level = piece ? pieces_ : wholes_;
    std::vector<Block*> gone;
    for (auto place = first(level, begin); place != level.end() && place->first < end; place = level.erase(place))
        gone.push_back(place->second);
    for (Block* block : gone) {
        bool freed_piece = piece && !block->live;
        if (freed_piece && block->begin < begin) keep_rest(*block, block->begin, begin);
        if (freed_piece && block->end > end) keep_rest(*block, end, block->end);
        retire(block);
    }
}

void Blocks::clear() {
    for (Level* level : {&wholes_, &pieces_}) {
        for (auto& entry : *level) retire(entry.second);
        level->clear();
    }
    device_ = host_ = {};
}

}  // namespace check
