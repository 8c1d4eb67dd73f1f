// What the events come to: lanes of streams, waits with their reasons, blocks, bytes over time.

const BANDS = 8;                            // tags or lines that have a colour of their own
const CHUNK = 64;                           // changes of bytes whose largest is known

// Of numbers from 0: a call takes no hundred thousand arguments.
function largest(numbers) { return numbers.reduce((most, number) => Math.max(most, number), 0); }

class Lane {
    constructor(runtime, stream) {
        this.runtime = runtime;
        this.stream = stream;
        this.bars = [];                     // one event of each launch
        this.waits = [];
        this.marks = [];                    // allocations, frees, fences
        this.warnings = [];                 // what a program does not want
        this.longest = 0;                   // of the windows
    }
}

const BEGINNINGS = ["allocate", "adopt", "free failed"], ENDS = ["free", "release", "evict"];
const WARNINGS = ["window wait", "host wait", "free failed", "out of memory"];
const NO_EVENT = 0xffffffff;

class Model {
    constructor(events) {
        this.events = events;
        this.lanes = new Map();
        this.wait_of = new Map();           // event to {event, source, needs, excess}
        this.begins = [];
        this.ends = [];
        this.needs = new Map();             // by thread: of the operation that is under way
        this.newest = new Map();            // by block and stream: the newest use there, or the allocation
        this.live = new Map();              // block to its place in `begins`
        for (let event = 0; event < events.count; ++event) this.add(event);
        this.needs = this.newest = this.live = null;
        this.rows = [...this.lanes.values()].sort((a, b) => a.runtime - b.runtime || a.stream - b.stream);
        for (const lane of this.rows) for (const name of ["bars", "waits", "marks", "warnings"])
            lane[name] = Uint32Array.from(lane[name]);
        this.begins = Uint32Array.from(this.begins);
        this.ends = Uint32Array.from(this.ends);
        this.end = Math.max(events.count ? events.times[events.count - 1] : 0, 1);
        this.addresses = new Addresses(events, this.begins);
        const adopted = (block) => events.is(this.begins[block], "adopt");
        this.history_of_bytes = new Bytes(events, ...this.lives((block) => !adopted(block)));
        this.adopted_bytes = new Bytes(events, ...this.lives(adopted));
    }

    lane(runtime, stream) {
        const key = runtime * 2 ** 32 + stream;
        let lane = this.lanes.get(key);
        if (!lane) this.lanes.set(key, lane = new Lane(runtime, stream));
        return lane;
    }

    // Streams of another runtime have the same numbers; that may be of the same device.
    lane_name(lane) {
        const stream = this.events.stream_name(lane.stream);
        const others = this.rows.filter((other) => other.runtime !== lane.runtime);
        if (!others.length) return stream;
        const shared = others.some((other) => (other.runtime & 15) === (lane.runtime & 15));
        return shared ? `${stream}, runtime ${lane.runtime >> 4}` : `${stream} on ${lane.runtime & 15}`;
    }

    add(event) {
        const events = this.events, kind = events.kind(event);
        if (kind === "use needs" || kind === "free needs") return this.note_need(event);
        const lane = this.lane(events.runtime(event), events.stream(event));
        if (kind === "use" || kind === "record use") return this.add_use(lane, event);
        if (kind === "wait" || kind === "host wait") this.add_wait(lane, event);
        if (WARNINGS.includes(kind)) lane.warnings.push(event);
        else if (kind !== "wait") lane.marks.push(event);
        if (BEGINNINGS.includes(kind)) this.begin_block(event);
        if (ENDS.includes(kind)) this.end_block(event);
    }

    note_need(event) {
        const thread = this.events.thread(event);
        if (!this.needs.has(thread)) this.needs.set(thread, []);
        this.needs.get(thread).push(event);
    }

    // A launch is one bar, however many blocks it uses.
    add_use(lane, event) {
        this.needs.delete(this.events.thread(event));
        this.newest.set(this.place(event, lane.stream), event);
        if (event > 0 && this.same_launch(event - 1, event)) return;
        lane.bars.push(event);
        lane.longest = Math.max(lane.longest, this.events.open(event));
    }

    // Accesses by the host have no position, but one end.
    same_launch(event, next) {
        const {events} = this;
        if (events.stream(event) === NO_STREAM && events.times[event] !== events.times[next]) return false;
        return events.code(event) === events.code(next) && events.position(event) === events.position(next)
            && events.stream(event) === events.stream(next) && events.runtime(event) === events.runtime(next)
            && events.thread(event) === events.thread(next);
    }

    // The uses that a launch filed: one for each block.
    launch(first) {
        let end = first + 1;
        while (end < this.events.count && this.same_launch(first, end)) ++end;
        return Array.from({length: end - first}, (_, i) => first + i);
    }

    // An arrow comes from the newest launch that the wait is needed for.
    add_wait(lane, event) {
        const {events} = this, other = events.other(event), thread = events.thread(event);
        const pending = this.needs.get(thread) ?? [];
        const needs = pending.filter((need) => events.other(need) === other);
        this.needs.set(thread, pending.filter((need) => events.other(need) !== other));
        lane.waits.push(event);
        this.wait_of.set(event, {event, needs, ...this.source_of(event, needs)});
    }

    // What is waited for, and how many later launches of that stream are covered by the fence too.
    source_of(event, needs) {
        const {events} = this, other = events.other(event), runtime = events.runtime(event);
        const bars = other === NO_STREAM ? [] : this.lane(runtime, other).bars;
        const covered = this.last_until(bars, events.position(event));
        const sources = needs.map((need) => this.newest.get(this.place(need, other))).filter((use) => use !== undefined);
        if (!sources.length || sources.length < needs.length || !events.is(event, "wait"))
            return {source: bars[covered] ?? NO_EVENT, excess: 0};
        const source = largest(sources);
        let excess = 0;
        while (excess <= covered && bars[covered - excess] > source) ++excess;
        return {source, excess};
    }

    // What a block and a stream have to do with each other: reads apart from all else.
    place(event, stream) {
        const read = this.events.access(event) === "read";
        return (this.events.block(event) * 65536 + stream % 32768) * 2 + read;
    }

    // The last of these launches, whose positions rise, at or before a position: -1 if none is.
    last_until(bars, position) {
        let low = 0;
        for (let high = bars.length; low < high;) {
            const middle = (low + high) >>> 1;
            if (this.events.position(bars[middle]) <= position) low = middle + 1;
            else high = middle;
        }
        return low - 1;
    }

    // The beginnings and ends of some blocks.
    lives(wanted) {
        const blocks = [...this.begins.keys()].filter(wanted);
        return [blocks.map((block) => this.begins[block]), blocks.map((block) => this.ends[block])];
    }

    // One whose free failed goes on.
    begin_block(event) {
        if (this.live.has(this.events.block(event))) return;
        this.events.note_label(event);
        this.newest.set(this.place(event, this.events.stream(event)), event);
        this.live.set(this.events.block(event), this.begins.length);
        this.begins.push(event);
        this.ends.push(NO_EVENT);
    }

    end_block(event) {
        const block = this.live.get(this.events.block(event));
        if (block !== undefined) this.ends[block] = event;
        this.live.delete(this.events.block(event));
    }

    end_of(block) { return this.ends[block] === NO_EVENT ? this.end : this.events.times[this.ends[block]]; }

    // All events of a block; those of which it is the reason too.
    story(block) {
        const found = [];
        for (let event = 0; event < this.events.count; ++event) if (this.events.block(event) === block) found.push(event);
        return found;
    }
}

// Where in the picture an address is: memory that no block had is left out.
class Addresses {
    constructor(events, begins) {
        const sizes = new Map();
        for (const event of begins)
            sizes.set(events.address(event), Math.max(sizes.get(events.address(event)) ?? 0, events.size(event), 1));
        const sorted = Float64Array.from(sizes.keys()).sort();
        this.starts = [], this.offsets = [];
        this.total = 0;
        let end = -1;
        for (const address of sorted) {
            const until = address + sizes.get(address);
            if (address > end) {
                this.starts.push(address);
                this.offsets.push(this.total);
                end = address;
            }
            this.total += Math.max(0, until - end);
            end = Math.max(end, until);
        }
        this.starts = Float64Array.from(this.starts);
        this.offsets = Float64Array.from(this.offsets);
    }

    // Bytes from the lowest address.
    offset(address) {
        let low = 0;
        for (let high = this.starts.length; high - low > 1;) {
            const middle = (low + high) >>> 1;
            if (this.starts[middle] <= address) low = middle;
            else high = middle;
        }
        return this.offsets[low] + address - this.starts[low];
    }
}

// Live bytes after each allocation and free, by label: those with the highest peaks have bands, the others share one.
class Bytes {
    constructor(events, begins, ends) {
        const ended = ends.filter((event) => event !== NO_EVENT);
        this.changes = new Uint32Array(begins.length + ended.length);
        this.changes.set(begins);
        this.changes.set(ended, begins.length);
        this.changes.sort();
        const signed = (event) => ENDS.includes(events.kind(event)) ? -events.size(event) : events.size(event);
        this.peaks = this.find_peaks(events, signed);
        this.bands = [...this.peaks.keys()].sort((a, b) => this.peaks.get(b) - this.peaks.get(a)).slice(0, BANDS);
        this.add_up(events, signed);
    }

    find_peaks(events, signed) {
        const now = new Map(), peaks = new Map();
        for (const event of this.changes) {
            const label = events.label(event), bytes = (now.get(label) ?? 0) + signed(event);
            now.set(label, bytes);
            peaks.set(label, Math.max(peaks.get(label) ?? 0, bytes));
        }
        return peaks;
    }

    band(label) {
        const band = this.bands.indexOf(label);
        return band < 0 ? BANDS : band;
    }

    add_up(events, signed) {
        const band_of = new Map([...this.peaks.keys()].map((label) => [label, this.band(label)]));
        const width = BANDS + 1, now = new Float64Array(width);
        this.totals = new Float64Array(this.changes.length);
        this.by_band = new Float32Array(this.changes.length * width);
        this.largest = new Uint32Array(Math.ceil(this.changes.length / CHUNK));     // of each chunk
        let total = 0;
        this.peak = 0;
        for (let change = 0; change < this.changes.length; ++change) {
            const bytes = signed(this.changes[change]);
            now[band_of.get(events.label(this.changes[change]))] += bytes;
            this.totals[change] = total += bytes;
            this.by_band.set(now, change * width);
            const chunk = Math.floor(change / CHUNK);
            if (change % CHUNK === 0 || total > this.totals[this.largest[chunk]]) this.largest[chunk] = change;
            this.peak = Math.max(this.peak, total);
        }
    }

    // The change after which most bytes are live, of those from `first` until before `end`.
    largest_in(first, end) {
        let best = first;
        for (let change = first; change < end;) {
            const whole = change % CHUNK === 0 && change + CHUNK <= end;
            const seen = whole ? this.largest[change / CHUNK] : change;
            if (this.totals[seen] > this.totals[best]) best = seen;
            change += whole ? CHUNK : 1;
        }
        return best;
    }
}
