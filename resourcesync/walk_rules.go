package resourcesync

// The ids of the rules that only a walk can check.
const (
	ruleEmpty   = "rs-empty"
	ruleFull    = "rs-full"
	ruleStable  = "rs-stable"
	ruleNested  = "rs-nested"
	ruleHole    = "rs-hole"
	ruleMissing = "rs-missing"
	ruleNames   = "rs-names"
	ruleReach   = "rs-reach"
	ruleClosed  = "rs-closed"
)

// walkRules are the rules about how documents fit together.
func walkRules() []Rule {
	const clause = "ANSI/NISO Z39.99-2017, "
	return []Rule{
		{ruleEmpty, "a list that had entries is not emptied by mistake", "this implementation", false},
		{ruleFull, "a Resource List of 50,000 entries is part of an index, if there are more", clause + "7, 10.2", false},
		{ruleStable, "lists of one snapshot stay as they are while they are read, and have the at that their index gives them", clause + "10.2", false},
		{ruleNested, "an index names lists, not indexes", clause + "6.1", false},
		{ruleHole, "each Change List goes on from where the one before it ends", clause + "12.2", false},
		{ruleMissing, "what a document names is there, and is what it is said to be", clause + "6.2", false},
		{ruleNames, "what a document calls its Capability List or index names the document, and has one entry for a capability", clause + "6.2, 9", false},
		{ruleReach, "the Change Lists begin no later than the Resource List's at", clause + "5.2, 12.1", false},
		{ruleClosed, "a Change List with until stays as it is", clause + "7, 12.1", false},
	}
}
