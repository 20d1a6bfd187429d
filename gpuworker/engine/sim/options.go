package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options describe the modelled device. With zero times, steps take no time.
type Options struct {
	StepTime    time.Duration // of every step
	PrefillTime time.Duration // of every prompt token
	DecodeTime  time.Duration // of every generated token
	Memory      uint64        // bytes of the device; 0 = 16 GiB
	// Reserved ids, 0 <= id < Reserved, are not sampled unless a mask or a list of allowed tokens
	// names them: many vocabularies have special tokens there, and a stream must not end at random.
	Reserved int
	// TwoClasses makes the device report that its kernel classes give different bits, like those of
	// a GPU. Callers then use it like a GPU, although its bits do not differ.
	TwoClasses bool
}

// Default returns a device that decodes 100 sequences at about 40 000 tokens a second.
func Default() Options {
	return Options{
		StepTime: 500 * time.Microsecond, PrefillTime: 2 * time.Microsecond, DecodeTime: 20 * time.Microsecond,
		Memory: 16 << 30, Reserved: 16,
	}
}

// ParseOptions parses "sim" or "sim:key=value,...". The keys are step, prefill and decode
// (durations), memory (bytes), reserved (ids) and two-classes (true or false). Other options are
// those of Default.
func ParseOptions(s string) (Options, error) {
	o := Default()
	rest, ok := strings.CutPrefix(s, "sim")
	if rest, given := strings.CutPrefix(rest, ":"); ok && given {
		for pair := range strings.SplitSeq(rest, ",") {
			if err := o.set(pair); err != nil {
				return Options{}, fmt.Errorf("device %q: %w", s, err)
			}
		}
		return o, nil
	}
	if !ok || rest != "" {
		return Options{}, fmt.Errorf("device %q is not a sim device: %w", s, engine.ErrInvalid)
	}
	return o, nil
}

func (o *Options) set(pair string) (err error) {
	key, value, _ := strings.Cut(pair, "=")
	times := map[string]*time.Duration{"step": &o.StepTime, "prefill": &o.PrefillTime, "decode": &o.DecodeTime}
	switch {
	case times[key] != nil:
		*times[key], err = time.ParseDuration(value)
		if err == nil && *times[key] < 0 {
			err = fmt.Errorf("time is negative")
		}
	case key == "memory":
		o.Memory, err = strconv.ParseUint(value, 10, 63)
	case key == "reserved":
		var n uint64
		n, err = strconv.ParseUint(value, 10, 31)
		o.Reserved = int(n)
	case key == "two-classes":
		o.TwoClasses, err = strconv.ParseBool(value)
	default:
		return fmt.Errorf("no option %q, want step, prefill, decode, memory, reserved or two-classes: %w", key, engine.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("option %q is %q: %w: %w", key, value, err, engine.ErrInvalid)
	}
	return nil
}
