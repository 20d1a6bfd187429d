package device

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Bus is the link between host and device. If Peak is 0, Text has the reason.
type Bus struct {
	Peak float64 `json:"peak_bytes"` // bytes a second in each direction, packet headers included
	Text string  `json:"text"`
}

// busTimeout bounds the run of nvidia-smi.
const busTimeout = 20 * time.Second

// findBus returns the link of the GPU with this UUID: the maximum of GPU and slot that nvidia-smi
// reports, else the current link that the system reports. bus is its PCI address, if known.
// fastest is the largest measured rate: a link that is reported to be slower is an artefact of a
// virtual machine.
func findBus(ctx context.Context, uuid, bus string, fastest float64) Bus {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	const query = "--query-gpu=uuid,pci.bus_id,pcie.link.gen.max,pcie.link.width.max"
	output, err := exec.CommandContext(ctx, "nvidia-smi", query, "--format=csv,noheader").Output()
	if err == nil {
		link, place := parseTool(string(output), uuid)
		if link.Peak > 0 {
			return link.plausible(fastest)
		}
		if bus == "" {
			bus = place
		}
	}
	if bus == "" {
		return Bus{Text: "not known: nvidia-smi does not report the link, nor where the GPU is"}
	}
	dir := "/sys/bus/pci/devices/" + bus
	speed, _ := os.ReadFile(filepath.Join(dir, "current_link_speed"))
	width, _ := os.ReadFile(filepath.Join(dir, "current_link_width"))
	return parseSystem(string(speed), string(width)).plausible(fastest)
}

// rates are those of PCI Express by generation, in transfers a second, each one bit a lane.
var rates = []float64{0, 2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9}

// link returns the peak of a link. The line code uses 2 of 10 or 2 of 130 bits.
func link(transfers float64, lanes int) float64 {
	code := 128.0 / 130
	switch {
	case transfers <= rates[2]:
		code = 8.0 / 10
	case transfers > rates[5]: // blocks of 256 bytes, of which 242 are data
		code = 242.0 / 256
	}
	return transfers * float64(lanes) / 8 * code
}

// parseTool parses the output of nvidia-smi for one GPU, and returns its PCI address as the system
// writes it.
func parseTool(output, uuid string) (b Bus, place string) {
	for line := range strings.Lines(output) {
		fields := strings.Split(strings.TrimSpace(line), ", ")
		if len(fields) != 4 || fields[0] != uuid {
			continue
		}
		place = strings.ToLower(fields[1])
		if domain, rest, ok := strings.Cut(place, ":"); ok && len(domain) == 8 {
			place = domain[4:] + ":" + rest
		}
		var generation, lanes int
		_, err := fmt.Sscanf(fields[2]+" "+fields[3], "%d %d", &generation, &lanes)
		if err != nil || generation < 1 || generation >= len(rates) || lanes < 1 || lanes > 32 {
			return Bus{}, place
		}
		return Bus{Peak: link(rates[generation], lanes), Text: fmt.Sprintf("PCIe Gen%d x%d", generation, lanes)}, place
	}
	return Bus{}, ""
}

// parseSystem parses a speed such as "32.0 GT/s PCIe" and a width such as "16".
func parseSystem(speed, width string) Bus {
	var giga float64
	var lanes int
	_, err := fmt.Sscanf(speed, "%g GT/s", &giga)
	if _, err2 := fmt.Sscanf(width, "%d", &lanes); err != nil || err2 != nil || giga <= 0 || lanes < 1 || lanes > 32 {
		return Bus{Text: "not known: neither nvidia-smi nor the system reports the link"}
	}
	return Bus{Peak: link(giga*1e9, lanes), Text: fmt.Sprintf("PCIe of %g GT/s x%d", giga, lanes)}
}

func (b Bus) plausible(fastest float64) Bus {
	if b.Peak > 0 && b.Peak < fastest {
		return Bus{Text: fmt.Sprintf("not known: the link is said to be %s of %.1f GB/s, and %.1f were measured", b.Text,
			b.Peak/1e9, fastest/1e9)}
	}
	return b
}
