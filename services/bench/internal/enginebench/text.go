package enginebench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "machine  %s; %.1f %% of its time stolen meanwhile\n", r.Machine, 100*r.Stolen)
	fmt.Fprintf(w, "model    %s %s, %.1f M weights, %.1f MB, digest %.16s\n", r.Model.Architecture, r.Model.Type,
		float64(r.Model.Parameters)/1e6, float64(r.Model.Bytes)/1e6, r.Model.Digest)
	fmt.Fprintf(w, "device   %s, path %s, %d threads, kv %s, class %s\n", r.Device.Name, r.Device.Path, r.Device.Threads,
		r.Device.KV, r.Device.Class)
	if r.Roofs == nil {
		fmt.Fprintf(w, "roof     not measured: a %s device has none\n", r.Device.Kind)
	} else {
		fmt.Fprintf(w, "roof     %s\n", r.Roofs.Used)
		fmt.Fprintf(w, "         the larger of before (%s) and after (%s)\n", r.Roofs.Before, r.Roofs.After)
		fmt.Fprintf(w, "         read beside the repeats, which shares are of: %.1f GB/s (%.1f..%.1f)\n",
			r.Roofs.Beside.Median/1e9, r.Roofs.Beside.Min/1e9, r.Roofs.Beside.Max/1e9)
	}
	fmt.Fprintf(w, "load     %.2f GB/s (%.2f..%.2f) from page cache until verified, %.2f GB/s until ready; %.0f ms:",
		r.Load.Verified.Median/1e9, r.Load.Verified.Min/1e9, r.Load.Verified.Max/1e9, r.Load.Ready.Median/1e9, 1e3*r.Load.Seconds)
	for _, s := range r.Load.Stages {
		fmt.Fprintf(w, " %s %.0f", s.Name, 1e3*s.Seconds)
	}
	m := &r.Load.Memory
	fmt.Fprintf(w, "\nmemory   device %.2f GB at most in a load (model %.2f + largest tensor %.2f + KV %.2f + workspace %.2f = %.2f GB), "+
		"host %.2f GB above the page cache", float64(m.DevicePeak)/1e9, float64(m.Model)/1e9, float64(m.Tensor)/1e9,
		float64(m.KV)/1e9, float64(m.Workspace)/1e9, float64(m.bound())/1e9, float64(m.HostPeak)/1e9)
	fmt.Fprintf(w, "\ntokens   blake3 %.16s of sequence 0 by Generate; every sequence is held to its own in every batch\n", r.Digest)
	if len(r.Lines) > 0 {
		fmt.Fprintf(w, "\nprompts of %d tokens, %d tokens generated each, median of %d (min..max), %d step(s) in flight\n\n",
			r.Prompt, r.Tokens, r.Repeat, r.Depth)
		printLines(w, r.Lines)
	}
	if len(r.Mixes) > 0 {
		r.printMixes(w)
	}
	r.Floors.Print(w)
}

func printLines(w io.Writer, lines []Line) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "class\tbatch\ttokens/s\t(min..max)\tMB/step\tGB/s\tof read\tGOPS\tof\troof\t\n")
	for _, l := range lines {
		fmt.Fprintf(table, "%s\t%d\t%.1f\t(%.1f..%.1f)\t%.1f\t%.2f\t%s\t%.1f\t%s\t%s\t\n", l.Class, l.Batch,
			l.TokensPerSecond.Median, l.TokensPerSecond.Min, l.TokensPerSecond.Max, l.BytesPerStep/1e6,
			l.BytesPerSecond/1e9, percent(l.ReadShare), l.OpsPerSecond/1e9, l.OpsKind, percent(l.OpsShare))
	}
	_ = table.Flush() // to a terminal or a buffer: nobody is left to tell
}

func (r *Report) printMixes(w io.Writer) {
	fmt.Fprintf(w, "\nsequences x prompt / tokens, as many at once, another when one ends; median of %d (min..max), 2 steps in flight\n\n",
		r.Repeat)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "mix\tgenerated/s\t(min..max)\tpositions/s\tidle\tMB/step\tGB/s\tof read\tGOPS\tof\troof\t\n")
	for _, m := range r.Mixes {
		l := &m.Line
		fmt.Fprintf(table, "%s\t%.1f\t(%.1f..%.1f)\t%.1f\t%s\t%.1f\t%.2f\t%s\t%.1f\t%s\t%s\t\n", m.Mix, m.Generated.Median,
			m.Generated.Min, m.Generated.Max, l.TokensPerSecond.Median, percent(m.Idle), l.BytesPerStep/1e6, l.BytesPerSecond/1e9,
			percent(l.ReadShare), l.OpsPerSecond/1e9, l.OpsKind, percent(l.OpsShare))
	}
	_ = table.Flush()
}

func percent(share float64) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}
