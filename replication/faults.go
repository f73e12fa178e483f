package replication

// Fault is a way in which it cannot be proven that no row was skipped.
type Fault int

const (
	_ Fault = iota
	SlotMissing
	SlotLost
	SlotAhead
	SlotForeign
	SlotElsewhere
	PublicationMissing
	PublicationNarrow
	PublicationChanged
	TableLeft
	TableReplaced
	TableUnusable
	SystemChanged
	TimelineForked
	Restored
	CheckpointDamaged
	CheckpointForeign
	BackfillUnfinished
	StandbyServer
	SlotHeld
	PublicationWide
)

// Way is a command that gets out of a fault.
type Way int

const (
	AcceptGap Way = 1 << iota // go on without the rows of the gap
	FromTable                 // publish what the outbox table still holds of it
	Adopt                     // take the position over to the new system id
)

// Row is a line of the table of continuity.
type Row struct {
	Fault Fault
	What  string // the condition
	Seen  string // when it is noticed, at the latest
	Ends  string // what comes of it
	First string // what has to be mended before a command helps; "": nothing
	Ways  Way    // the commands that get out of it, once that is mended
}

// Exit codes and the like of Row.Ends.
const (
	endsRun = "10"
	waits   = "waits"
	goesOn  = "goes on"
)

// When a fault is noticed. A look at the catalog comes every five seconds while the relay
// streams, and every second while idle positions are proven.
const (
	atStart = "start, reconnect"
	anyTime = "start, reconnect, next look at the catalog"
)

// Faults is the table of continuity: each state of the two sides and the saved position in
// which rows could be skipped, or taken for skipped. The README shows it.
var Faults = []Row{
	{SlotMissing, "the slot does not exist", atStart, endsRun, "", AcceptGap | FromTable},
	{SlotLost, "the slot was invalidated (`wal_status` lost, idle timeout)", atStart, endsRun, "", AcceptGap | FromTable},
	{SlotAhead, "the slot is ahead of the saved position: created again under its name, advanced by somebody else, or the checkpoint is an older copy", atStart, endsRun, "", AcceptGap | FromTable},
	{SlotForeign, "the slot is a physical one, a two-phase one, or decodes with another plugin", atStart, endsRun, "drop it, or give another `--slot`", AcceptGap | FromTable},
	{SlotElsewhere, "the slot belongs to another database", atStart, endsRun, "correct `--postgres-url`, or give another `--slot`", 0},
	{PublicationMissing, "the publication does not exist, or did not where the stream stands (Postgres 18 only gives a notice)", anyTime + "; at once where the server says so", endsRun, "`walrelay setup`", AcceptGap | FromTable},
	{PublicationNarrow, "the publication publishes no inserts, has a row filter, a column list that hides a mapped column, or partitions under their own names", anyTime, endsRun, "the `ALTER PUBLICATION` that the last line names", AcceptGap | FromTable},
	{PublicationChanged, "the publication is another one of the same name, or was altered, and perhaps altered back", anyTime, endsRun, "", AcceptGap | FromTable},
	{TableLeft, "the table is not in the publication, or left it and came back", anyTime, endsRun, "`ALTER PUBLICATION … ADD TABLE`, if it is not in it", AcceptGap | FromTable},
	{TableReplaced, "the table was dropped and created again", anyTime, endsRun, "", AcceptGap | FromTable},
	{TableUnusable, "the table does not exist, is unlogged, or is no table", anyTime, endsRun, "bring it back, or correct `--table`", AcceptGap | FromTable},
	{SystemChanged, "the server has another system id: `pg_upgrade`, a new cluster, or a wrong `--postgres-url`", atStart, endsRun, "", Adopt | AcceptGap | FromTable},
	{TimelineForked, "the timeline changed, and the new one branched off before the last event delivered, or does not descend from the old one", atStart, endsRun, "", AcceptGap | FromTable},
	{Restored, "the server was restored to a state before the saved position, also where its WAL has grown past it again", atStart + "; as soon as the stream shows other WAL", endsRun, "", AcceptGap | FromTable},
	{CheckpointDamaged, "the checkpoint is torn or was edited", atStart, endsRun, "", AcceptGap | FromTable},
	{CheckpointForeign, "the checkpoint is of another slot or a newer walrelay, is no checkpoint, cannot be read, or has moved to another store", atStart, endsRun, "correct `--checkpoint`, or what the last line says", 0},
	{BackfillUnfinished, "`run --backfill` was interrupted, and `run` is started without it", atStart, endsRun, "or `run --backfill`, which starts over", AcceptGap | FromTable},
	{StandbyServer, "the server is a standby", atStart, waits, "", 0},
	{SlotHeld, "another session holds the slot", atStart, waits, "", 0},
	{PublicationWide, "the publication publishes more than the inserts of this table (`FOR ALL TABLES`, updates, deletes)", atStart, goesOn + ", with a warning about the cost", "", 0},
}

// Ways returns the commands that get out of a fault.
func (f Fault) Ways() Way {
	for _, row := range Faults {
		if row.Fault == f {
			return row.Ways
		}
	}
	return 0
}

// The commands as refusals print them.
const (
	cmdAccept = "walrelay recover --accept-gap "
	cmdTable  = "walrelay recover --from-table"
	cmdAdopt  = "walrelay recover --adopt"
)
