package health

import "fmt"

const (
	// pressureShare and pressureLeast bound how much less memory may be free than the ledger has
	// left: a 64th of the device and at least half a GiB. An engine keeps as much out of its ledger
	// for the driver's own code, graphs and streams, so a worker that is alone on its device never
	// fails this check.
	pressureShare = 64
	pressureLeast = 512 << 20
)

// managed are the kinds of device with a management library, for which missing readings are a
// problem.
var managed = map[string]bool{"cuda": true}

// device judges the device.
func (in *Input) device() []verdict {
	if in.Failure != nil {
		return []verdict{failed(CheckDevice, NotReady, "%v", in.Failure)}
	}
	all := []verdict{passed(CheckDevice)}
	if managed[in.Device.Kind] {
		all = append(all, in.management())
	}
	if in.Device.Errors != nil {
		all = append(all, in.memoryErrors(*in.Device.Errors))
	}
	if in.Device.PhysicalFree != nil {
		all = append(all, in.memoryPressure())
	}
	return append(all, in.frees(), in.leaks())
}

func (in *Input) management() verdict {
	if in.Device.ManagementProblem == "" {
		return passed(CheckManagement)
	}
	return failed(CheckManagement, Ready, "readings are missing, so that memory errors may go unseen: %s; see that nvidia-smi "+
		"works where the worker runs: a container needs the driver's utility capability", in.Device.ManagementProblem)
}

func (in *Input) memoryErrors(count uint64) verdict {
	if count == 0 {
		return passed(CheckMemoryErrors)
	}
	return failed(CheckMemoryErrors, Degraded, "%d uncorrected memory errors since the driver was loaded: the requests that they hit "+
		"have failed already; drain this worker and reset the device, and replace it if they continue", count)
}

// memoryPressure compares the rest of the ledger with BytesFree, which is less if other processes
// use memory. With several GPUs, BytesFree is that of the fullest one.
func (in *Input) memoryPressure() verdict {
	d := &in.Device
	if d.Devices > 1 {
		return passed(CheckMemoryPressure)
	}
	used := uint64(0)
	for _, n := range d.BytesUsed {
		used += n
	}
	left := d.BytesTotal - min(used, d.BytesTotal)
	tolerated := uint64(pressureLeast)
	if d.PhysicalTotal != nil {
		tolerated = max(tolerated, *d.PhysicalTotal/pressureShare)
	}
	if d.BytesFree+tolerated >= left {
		return passed(CheckMemoryPressure)
	}
	others, known := "", *d.PhysicalFree+used+d.BytesPooled
	if d.PhysicalTotal != nil && *d.PhysicalTotal > known {
		others = fmt.Sprintf(": other processes and the driver hold %s of %s", size(*d.PhysicalTotal-known), size(*d.PhysicalTotal))
	}
	return failed(CheckMemoryPressure, Degraded, "the worker counts on %s of free memory and the device has %s%s; loads may fail: "+
		"end those processes, or give each worker its --memory-limit", size(left), size(d.BytesFree), others)
}

func (in *Input) frees() verdict {
	if in.Device.FailedFrees == 0 {
		return passed(CheckFrees)
	}
	return failed(CheckFrees, Degraded, "the driver refused %d frees since the worker started and may keep their memory until it "+
		"ends; drain the worker and restart it", in.Device.FailedFrees)
}

func (in *Input) leaks() verdict {
	if in.Leaked == 0 {
		return passed(CheckLeaks)
	}
	return failed(CheckLeaks, Degraded, "%d buffers have no owner: unload the models that failed to load, or drain the worker "+
		"and restart it to have their memory back", in.Leaked)
}

// size formats a number of bytes.
func size(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
