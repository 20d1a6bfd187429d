package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options are the modelled device. Zero times mean that steps take no time.
type Options struct {
	StepTime    time.Duration // of every step
	PrefillTime time.Duration // of every prompt token
	DecodeTime  time.Duration // of every generated token
	Memory      uint64        // bytes of the device; 0 = 16 GiB
	// Reserved ids, 0 <= id < Reserved, are not sampled unless a mask or a list of allowed tokens asks for them: special
	// tokens live there in many vocabularies, and a stream that ends at random is of no use to a rig.
	Reserved int
	// TwoClasses makes the device say that its kernel classes give different bits, as a GPU's do. Its own never do; one that says
	// so is used as a GPU is.
	TwoClasses bool
}

// Default is a device that decodes 100 sequences at about 40 000 tokens a second.
func Default() Options {
	return Options{
		StepTime: 500 * time.Microsecond, PrefillTime: 2 * time.Microsecond, DecodeTime: 20 * time.Microsecond,
		Memory: 16 << 30, Reserved: 16,
	}
}

// ParseOptions reads "sim" or "sim:key=value,...", whose keys are step, prefill and decode (durations), memory (bytes),
// reserved (ids) and two-classes (true or false). What is not named is as in Default.
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
