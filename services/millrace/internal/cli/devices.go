package cli

import (
	"fmt"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// deviceHead are the columns of deviceTable. DEVICE is the whole device as its driver counts it,
// LEDGER the worker's part of it.
var deviceHead = []string{
	"WORKER", "TEMP", "POWER", "ECC ERRORS", "CORRECTED", "DEVICE USED", "DEVICE FREE", "LEDGER USED", "LEDGER FREE",
	"POOLED", "POOL HITS", "MISSES", "LEAKED", "FAILED FREES", "VERIFIED", "IDLE",
}

// deviceTable returns one row a worker about its device. On a screen of width columns (0: no limit)
// it is split into several tables. An unknown value is an empty cell, never 0.
func deviceTable(workers []*pb.FleetWorker, width int) string {
	var rows [][]string
	for _, w := range workers {
		d := w.GetReport().GetDevice()
		row := make([]string, len(deviceHead))
		row[0] = workerName(w)
		if heard(w) && d != nil {
			copy(row[1:], []string{
				temperature(d), power(d), known(d.Errors), known(d.CorrectedErrors),
				physicalUsed(d), size(d.PhysicalBytesFree), render.Bytes(d.GetBytesTotal() - min(d.GetBytesFree(), d.GetBytesTotal())),
				render.Bytes(d.GetBytesFree()), render.Bytes(d.GetBytesPooled()), fmt.Sprint(d.GetPoolHits()),
				fmt.Sprint(d.GetPoolMisses()), fmt.Sprint(d.GetLeakedBuffers()), fmt.Sprint(d.GetFailedFrees()),
				verified(w.GetReport().GetModels()), idle(w.GetReport().GetModels()),
			})
		}
		rows = append(rows, row)
	}
	return render.Stack(deviceHead, rows, width)
}

func temperature(d *pb.DeviceStatus) string {
	if d.TemperatureCelsius == nil {
		return ""
	}
	return fmt.Sprintf("%d C", d.GetTemperatureCelsius())
}

func power(d *pb.DeviceStatus) string {
	if d.PowerMilliwatts == nil {
		return ""
	}
	return fmt.Sprintf("%.0f W", float64(d.GetPowerMilliwatts())/1000)
}

func known(n *uint64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

func size(bytes *uint64) string {
	if bytes == nil {
		return ""
	}
	return render.Bytes(*bytes)
}

// physicalUsed is what all processes hold of the device.
func physicalUsed(d *pb.DeviceStatus) string {
	if d.PhysicalBytesTotal == nil || d.PhysicalBytesFree == nil {
		return ""
	}
	return render.Bytes(d.GetPhysicalBytesTotal() - min(d.GetPhysicalBytesFree(), d.GetPhysicalBytesTotal()))
}

// verified says for each model when its resident bytes were last checked as a whole.
func verified(models []*pb.ModelStatus) string {
	var all []string
	for _, m := range models {
		age := "never"
		if m.GetVerifiedAge() != nil {
			age = render.Age(m.GetVerifiedAge().AsDuration())
		}
		all = append(all, m.GetName()+" "+age)
	}
	return strings.Join(all, ", ")
}

// idle says for each model that is in service how long ago its last request ended, and when it goes for that.
func idle(models []*pb.ModelStatus) string {
	var all []string
	for _, m := range models {
		text := m.GetName() + " in use"
		switch age := m.GetIdleAge(); {
		case age == nil:
			continue
		case age.AsDuration() > 0:
			text = m.GetName() + " " + render.Duration(age.AsDuration())
		}
		switch {
		case m.GetPinned():
			text += " (pinned)"
		case m.GetIdleUnload() != nil:
			text += " of " + render.Duration(m.GetIdleUnload().AsDuration())
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
