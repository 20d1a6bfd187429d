package vectors

import (
	"sync/atomic"
	"time"
)

// counters start at 0 with the manager.
type counters struct {
	finished, cancelled, failed         atomic.Uint64 // trainings
	rounds, rows, computed, recomputed  atomic.Uint64
	device                              atomic.Int64 // ns
	encoded, decoded, encodedRecomputed atomic.Uint64
	damaged                             atomic.Uint64
}

// Stats is the state of a manager and its counters.
type Stats struct {
	Supported                       bool
	Trainings, MaxTrainings         int
	TrainingBytes                   uint64 // of device memory
	SpoolBytes, FreeSpool           uint64 // of host memory
	PutBytes, FreePut               uint64 // of host memory, of codebooks in the middle of a put
	Finished, Cancelled, Failed     uint64 // trainings; cancelled ones were ended by their callers
	Rounds, Rows                    uint64 // of trainings: rounds completed, rows received
	Computed, Recomputed            uint64 // ids that trainings computed; of these, those that needed float64
	DeviceTime                      time.Duration
	EncodedRows, DecodedRows        uint64
	EncodedRecomputed               uint64 // ids of encoded rows that needed float64
	ReadyCodebooks, FailedCodebooks int
	CodebookBytes                   uint64 // of device memory
	DamagedCodebooks                uint64 // whose resident bytes differed from those loaded
	RefusedFrees                    int    // trainings and codebooks whose memory the device did not take back
}

// Stats returns the present ones.
func (m *Manager) Stats() Stats {
	c := &m.counted
	s := Stats{
		Supported: m.engine != nil, MaxTrainings: m.cfg.MaxTrainings,
		Finished: c.finished.Load(), Cancelled: c.cancelled.Load(), Failed: c.failed.Load(),
		Rounds: c.rounds.Load(), Rows: c.rows.Load(), Computed: c.computed.Load(), Recomputed: c.recomputed.Load(),
		DeviceTime: time.Duration(c.device.Load()), EncodedRows: c.encoded.Load(), DecodedRows: c.decoded.Load(),
		EncodedRecomputed: c.encodedRecomputed.Load(), DamagedCodebooks: c.damaged.Load(),
	}
	s.PutBytes = m.arriving.Load()
	s.FreePut = m.cfg.PutSpace - s.PutBytes
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Trainings, s.TrainingBytes, s.SpoolBytes = m.mu.trainings, m.mu.bytes, m.mu.spool
	s.FreeSpool, s.RefusedFrees = m.cfg.SpoolSpace-m.mu.spool, len(m.mu.refused)
	for _, b := range m.mu.books {
		if b.status().State == Ready {
			s.ReadyCodebooks++
		} else {
			s.FailedCodebooks++
		}
		s.CodebookBytes += b.Desc.Bytes()
	}
	return s
}
