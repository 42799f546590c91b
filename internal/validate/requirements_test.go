package validate

// requirement is one sentence of a specification that says what must, or should, be, in
// our words. At least one of rules, code and why is there.
type requirement struct {
	// clause is the section, level is Must or Should.
	clause, level string
	// what is required of documents, or of who writes or reads them.
	what string
	// rules are the ids of those that find documents which break it.
	rules string
	// code names what fulfils it, with a blank between: package.Function,
	// package.Type.Method, or a test.
	code string
	// why says why it is not checked, or what it means here.
	why string
}

// specification is one of the three.
type specification struct {
	title, text  string
	requirements []requirement
}

func specifications() []specification {
	return []specification{
		{"ResourceSync Framework Specification 1.1 (ANSI/NISO Z39.99-2017)",
			"Must is must, required and mandatory; should is should and recommended. What the specification leaves to the Source (may, optional) is left out.",
			resourceSyncRequirements()},
		{"Atom Feed Protocol for Metadata Harvesting 1.0 (draft 2012-11-23)",
			"Must is shall, should is should and recommended. The draft builds on RFC 4287, RFC 5005 and RFC 6721, whose rules are in the table of rules.",
			atomRequirements()},
		{"Simple Ingest Protocol, draft 0.1",
			"The draft has one must and two document types; what it states as a fact counts as a must.",
			sipRequirements()},
	}
}

// Reasons that several requirements share.
const (
	onlyTheSource  = "Only the Source knows it: no document shows what it leaves out."
	oneRun         = "It shows over time, and validate looks once."
	theDestination = "It is about a Destination, and no document shows it."
)

func resourceSyncRequirements() []requirement {
	return []requirement{
		{"2.3, 9", Must, "a resource of the Resource List is in the Resource Dump too, and its changes are in the Change List", "", "internal/publish.TestResourceListIsTheChangesPlayed", onlyTheSource},
		{"4", Must, "elements and attributes are in the namespaces of sitemaps and of ResourceSync", "rs-namespace rs-root rs-document", "resourcesync.Writer", ""},
		{"5.1", Must, "a Resource Dump's packages have a manifest with URI and path of each bitstream", "rs-path rs-loc rs-package-file", "resourcesync.DumpWriter", ""},
		{"5.1, 12.1", Must, "a Change List has at least the URI of each changed resource and the nature of the change", "rs-change rs-loc", "translate.ListEncoder.ChangeEntries", ""},
		{"5.1, 13.2", Must, "a Change Dump Manifest has at least URI and change of each bitstream, and its path where there is one", "rs-change rs-path rs-loc rs-package-file", "resourcesync.DumpWriter", ""},
		{"5.2", Must, "a Destination makes an initial copy, and can follow changes from there", "rs-reach", "resourcesync.Walk.Documents", ""},
		{"5.2", Must, "a Destination can check that what it has is what the Source has now", "", "resourcesync.NewHashCheck resourcesync.Result.Complete", ""},
		{"6.1", Must, "there is a Source Description, which names each Capability List", "rs-described rs-missing", "internal/publish.PlanSite", ""},
		{"6.1", Must, "a document and the index of several have the same capability", "rs-missing rs-nested", "internal/publish.Render", ""},
		{"6.2", Must, "the links up lead to the Capability List, and from there to the Source Description", "rs-up rs-names rs-missing", "internal/publish.upLink", ""},
		{"6.2", Must, "a document under an index has a link index to it, of which there is one", "rs-index rs-index-link", "internal/publish.indexLink", ""},
		{"6.3.2", Must, "a Source publishes a Source Description", "rs-missing", "internal/publish.PlanSite", ""},
		{"6.3.2", Should, "it is at /.well-known/resourcesync", "rs-well-known", "internal/publish.PlanSite", ""},
		{"6.3.3", Must, "a link of relation resourcesync in a page or a Link header leads to a Capability List that covers the resource", "", "internal/publish.Publisher.LinkHeader internal/server.TestRecord resourcesync.Walk.Discover", "Which resources a Capability List covers shows only when all its lists were read; the links are followed all the same."},
		{"7", Must, "sitemapindex is used where several urlset documents belong together", "rs-full rs-entries rs-size", "internal/publish.RenderParts", ""},
		{"7", Must, "a document has at most 50,000 items and 50 MB", "rs-entries rs-size", "resourcesync.ErrFull internal/publish.TestParts", ""},
		{"7", Must, "attributes of ResourceSync have no prefix", "rs-attribute", "resourcesync.Writer", ""},
		{"7", Must, "attributes of communities are in another namespace, with a prefix", "rs-attribute", "resourcesync.CarriedNamespace", ""},
		{"7", Must, "the root has an rs:md, and that a capability", "rs-head", "resourcesync.Writer", ""},
		{"7, Table 2", Should, "rs:md and rs:ln of the root stand before the entries", "rs-position", "resourcesync.Writer", ""},
		{"7", Must, "the capability is one of those that are defined", "rs-capability", "resourcesync.Capability", ""},
		{"7", Must, "at and completed are on documents that show a state, from and until on those that show changes, and never the other way round", "rs-at rs-from", "internal/publish.Render", ""},
		{"7", Must, "at is when the snapshot began, and each resource is shown as it was then or later", "", "internal/publish.resourceHead", onlyTheSource},
		{"7", Must, "from and until say which changes are in the document: all of that time", "rs-hole rs-interval", "internal/publish.renderChanges", onlyTheSource},
		{"7", Must, "a document with until does not change any more", "rs-closed", "internal/publish.TestAnyStepsSameBytes", oneRun + " A harvest reports it."},
		{"7", Must, "a document without until is updated with each further change", "", "internal/publish.TestAnyStepsSameBytes", oneRun},
		{"7", Must, "times are W3C Datetimes", "rs-date rs-naive", "resourcesync.Datetime.Append", ""},
		{"7", Should, "times are complete, with seconds, and in UTC", "rs-utc", "resourcesync.Datetime.Append", ""},
		{"7", Must, "a link has href and rel", "rs-link", "resourcesync.Writer.Entry", ""},
		{"7", Must, "an entry has a loc, which is a URI", "rs-loc", "resourcesync.Writer.Entry", ""},
		{"7", Must, "an entry has at most one lastmod and one rs:md", "rs-entry", "resourcesync.Writer.Entry", ""},
		{"7", Must, "changefreq has one of seven values", "rs-sitemap", "translate.FromResource", ""},
		{"7", Should, "changefreq is always for resources that change on each access, and never for those in an archive", "", "", onlyTheSource},
		{"7", Must, "at and completed of an entry are on entries of Resource List Indexes, Resource Dumps and their indexes; from and until on those of Change List Indexes, Change Dumps and their indexes", "rs-entry-times", "internal/publish.changeIndex internal/publish.resourceIndex", ""},
		{"7", Must, "entries of Source Descriptions and Capability Lists state the capability of what they lead to", "rs-listed rs-described", "internal/publish.capabilities internal/publish.describe", ""},
		{"7", Must, "change and datetime are in Change Lists and Change Dump Manifests only; a change is created, updated or deleted", "rs-change rs-entry-attributes", "translate.ListEncoder.ChangeEntries", ""},
		{"7", Must, "a datetime is not before from and not after until", "rs-interval", "internal/publish.renderChanges", ""},
		{"7", Should, "encoding is what the answer's Content-Encoding says", "", "resourcesync.Metadata.Encoding translate.FromResource", "It depends on what the client accepts. A harvest checks hash and length of the coded body."},
		{"7", Must, "a hash is the name of an algorithm and a digest in hex; several have white space between them", "rs-hash", "resourcesync.Hashes", ""},
		{"7", Must, "hash, length and type are those of what loc answers", "rs-resource", "internal/server.TestLocsAnswerWhatTheListsState resourcesync.NewHashCheck", ""},
		{"7", Should, "length is what Content-Length says", "rs-length rs-resource", "internal/server.TestLocsAnswerWhatTheListsState", ""},
		{"7", Must, "length is counted as HTTP counts it", "rs-length rs-resource", "internal/server.TestLocsAnswerWhatTheListsState", ""},
		{"7", Must, "path is in manifests only, relative to the root of the package", "rs-entry-attributes rs-path rs-bitstream", "resourcesync.DumpWriter", ""},
		{"7", Should, "a type is a registered media type", "rs-media-type", "atompmh.CanBeType translate.ServedType", "The form is checked. The registry changes daily, and x- types are common."},
		{"7", Must, "pri is a whole number from 1 to 999,999, and 999,999 when it is absent", "rs-pri", "resourcesync.Link.Pri", ""},
		{"7", Should, "attributes of a representation are on links and entries of one", "", "", "It depends on what a URI identifies, which only the Source knows."},
		{"7", Must, "a relation type is registered with IANA, or a URI", "rs-relation", "internal/publish.Render", ""},
		{"8", Must, "a Source Description has the capability description", "rs-capability rs-missing", "internal/publish.describe", ""},
		{"8", Should, "a Source Description has a link describedby", "rs-describedby", "internal/publish.describe", ""},
		{"8", Should, "it has one entry for each Capability List", "rs-missing", "internal/publish.describe", onlyTheSource},
		{"8", Must, "an rs:md of its entries has the capability capabilitylist", "rs-described", "internal/publish.describe", ""},
		{"8", Should, "its entries have links describedby", "rs-describedby", "internal/publish.describe", ""},
		{"8, 9", Should, "entries of Source Descriptions and Capability Lists have no lastmod, unless the document is updated with all that it leads to", "rs-lastmod", "internal/publish.describe internal/publish.capabilities", ""},
		{"8", Must, "several Source Descriptions have an index", "rs-missing", "resourcesync.Walk.Discover", "One document is enough for 50,000 sets: a bridge never writes a second one."},
		{"9", Must, "sets of resources have Capability Lists of their own", "", "internal/publish.PlanSet", onlyTheSource},
		{"9", Must, "a Capability List has one entry for each capability", "rs-capabilities rs-names", "internal/publish.capabilities", ""},
		{"9", Must, "it has the capability capabilitylist", "rs-capability rs-missing", "internal/publish.capabilities", ""},
		{"9", Must, "it has a link up to the Source Description", "rs-up rs-names", "internal/publish.capabilities", ""},
		{"9", Should, "it has a link describedby", "rs-describedby", "internal/publish.capabilities", ""},
		{"9", Must, "its entries have a loc and the capability of what is there", "rs-listed rs-loc rs-missing", "internal/publish.capabilities", ""},
		{"9", Should, "there is no index of Capability Lists", "rs-capability-index", "internal/publish.PlanSite", ""},
		{"10.1", Must, "a Resource List has the capability resourcelist, at, and a link up", "rs-capability rs-at rs-up", "internal/publish.resourceHead", ""},
		{"10.1", Should, "it has a link index where there is an index", "rs-index-link", "internal/publish.indexLink", ""},
		{"10.1", Should, "it has an entry for each resource", "rs-empty rs-full", "internal/publish.TestResourceListIsTheChangesPlayed", onlyTheSource},
		{"10.2", Must, "a Resource List Index has the capability resourcelist, at, and lists that together have all resources", "rs-at rs-missing rs-stable", "internal/publish.resourceIndex", ""},
		{"10.2", Should, "it has an entry for each Resource List, with its loc", "rs-loc rs-empty", "internal/publish.resourceIndex", ""},
		{"11.1", Should, "packages are ZIP files, and those of one dump have one format", "rs-packages", "internal/publish.dumpDocument", ""},
		{"11.1", Must, "a Resource Dump has the capability resourcedump, and at", "rs-capability rs-at", "internal/publish.dumpDocument", ""},
		{"11.1", Should, "its entries have type and length of the package", "rs-package", "internal/publish.dumpDocument", ""},
		{"11.1, 13.1", Must, "a manifest that contents leads to is the one in the package", "rs-contents rs-missing", "internal/publish.packages.end", ""},
		{"11.1", Must, "several Resource Dumps have an index", "rs-capabilities", "internal/publish.PlanSet", ""},
		{"11.2", Must, "each package has a manifest.xml at its top level", "rs-package-file", "resourcesync.DumpWriter", ""},
		{"11.2", Must, "a Resource Dump Manifest has the capability resourcedump-manifest, and at", "rs-capability rs-at", "internal/publish.Publisher.makeResourceDump", ""},
		{"11.2", Must, "its entries have loc, and a path with a leading slash", "rs-loc rs-path rs-bitstream", "resourcesync.DumpWriter", ""},
		{"11.2", Should, "its entries have a type", "rs-type", "translate.ListEncoder.ResourceEntry", ""},
		{"12.1", Must, "changes are in chronological order, the oldest first", "rs-order", "internal/publish.renderChanges", ""},
		{"12.1", Must, "a resource that changed several times is listed as often", "", "internal/publish.renderChanges", onlyTheSource},
		{"12.1", Must, "a Change List has the capability changelist, and from", "rs-capability rs-from", "internal/publish.renderChanges", ""},
		{"12.1", Must, "until is not earlier than from", "rs-until", "internal/publish.renderChanges", ""},
		{"12.1", Should, "it has a link index where there is an index", "rs-index-link", "internal/publish.indexLink", ""},
		{"12.1", Should, "it has an entry for each change", "rs-datetime", "internal/publish.renderChanges", onlyTheSource},
		{"12.1", Must, "its entries have loc and change", "rs-loc rs-change", "translate.ListEncoder.ChangeEntries", ""},
		{"12.1", Should, "a Destination that has read a closed Change List asks its index, or the Capability List, for the next", "", "resourcesync.TestCapabilityListChanges resourcesync.TestOneChangeList", theDestination},
		{"12.1", Should, "a Destination goes on polling an open Change List", "", "resourcesync.TestIncremental", theDestination},
		{"12.1", Should, "a Destination begins with the first change that it has not processed", "", "resourcesync.TestEachChangeOnce internal/eventlog.TestLaws", theDestination},
		{"12.2", Must, "several Change Lists have an index, which names them in chronological order", "rs-order rs-capabilities rs-hole", "internal/publish.changeIndex", ""},
		{"12.2", Must, "a Change List Index has the capability changelist, from, and a link up", "rs-capability rs-from rs-up", "internal/publish.changeIndex", ""},
		{"12.2", Should, "it has an entry for each Change List", "rs-hole rs-missing", "internal/publish.changeIndex", onlyTheSource},
		{"12.2", Must, "its entries have a loc; until if the list is closed, and not if it is open", "rs-loc rs-index-until", "internal/publish.changeIndex", ""},
		{"12.2", Should, "a Destination tells a list from an index by the root element", "", "resourcesync.Document.Index", ""},
		{"13.1", Should, "the packages of a Change Dump have one format, and are in chronological order", "rs-packages rs-dump-order", "internal/publish.dumpDocument", ""},
		{"13.1", Must, "a Change Dump has the capability changedump, from, and a link up", "rs-capability rs-from rs-up", "internal/publish.dumpDocument", ""},
		{"13.1", Should, "it has a link index where there is an index", "rs-index-link", "", "A bridge has one Change Dump for a set, and so no index."},
		{"13.1", Should, "it has an entry for each package", "", "internal/publish.planChangeDumps", onlyTheSource},
		{"13.1", Must, "several Change Dumps have an index", "rs-capabilities", "internal/publish.PlanSet", ""},
		{"13.2", Must, "a Change Dump Manifest is manifest.xml at the top level of its package", "rs-package-file", "resourcesync.DumpWriter", ""},
		{"13.2", Must, "its entries are in chronological order", "rs-order", "internal/publish.Publisher.makeChangeDumps", ""},
		{"13.2", Must, "it has the capability changedump-manifest, and from", "rs-capability rs-from", "internal/publish.Publisher.makeChangeDumps", ""},
		{"13.2", Must, "it has an entry for each change, and the package each bitstream", "rs-bitstream", "internal/publish.Publisher.makeChangeDumps", onlyTheSource},
		{"13.2", Must, "its entries have loc, change, and a path unless the resource was deleted", "rs-loc rs-change rs-path", "translate.ListEncoder.ChangeEntries", ""},
		{"13.2", Should, "its entries have a type", "rs-type", "translate.ListEncoder.ChangeEntries", ""},
		{"14.1", Should, "a Destination that does not understand a link uses loc", "", "translate.FromResource translate.TestFromResource", theDestination},
		{"14.2", Must, "a link to a mirror has the relation duplicate and href", "rs-link", "translate.FromResource translate.TestFromResource", ""},
		{"14.2", Should, "it leaves out what the entry says of the resource", "rs-duplicate", "event.Link.Published", "A bridge passes such links on as they came, and only where loc is that of the Source (content = \"reference\")."},
		{"14.3", Must, "a link to another representation has the relation alternate, or canonical to the generic URI, and href", "rs-link", "translate.ListEncoder.ResourceEntry", ""},
		{"14.3", Should, "an alternate link has a type", "rs-alternate", "translate.ListEncoder.ResourceEntry", ""},
		{"14.4", Must, "a link to a description of changes has the relation rs:patch, href and type", "rs-link rs-patch", "", "A bridge writes none."},
		{"14.4", Must, "the type says without doubt how to apply it", "rs-patch", "", "That there is one is checked."},
		{"14.4", Should, "a Destination that does not know the type ignores the link", "", "translate.FromResource", theDestination},
		{"14.4", Must, "it stands in Change Lists and Change Dump Manifests, there with a path", "rs-patch", "", ""},
		{"14.5", Must, "links between a resource and its metadata are describedby and describes, with href", "rs-link", "translate.FromResource internal/publish.Render", ""},
		{"14.5", Should, "a link profile leads to what helps to understand the metadata", "rs-link", "", "What is there shows no document."},
		{"14.6", Must, "links to versions are memento, timegate and timemap, with href", "rs-link", "internal/server.TestListsNameVersions translate.ListEncoder.ChangeEntries", ""},
		{"14.6", Must, "there is one memento, of the time of lastmod", "rs-memento", "internal/server.TestListsNameVersions", ""},
		{"14.6", Should, "a timegate link has no other attributes", "rs-timegate", "internal/server.TestListsNameVersions", ""},
		{"14.7", Must, "a link to a collection has the relation collection and href", "rs-link", "event.Link.Published", ""},
		{"14.8", Must, "a link to the original has the relation via and href", "rs-link", "translate.ListEncoder.ResourceEntry", ""},
		{"14.8", Should, "in a chain of aggregators the one via stays as it is", "rs-via", "translate.ListEncoder.ResourceEntry", ""},
		{"14.8", Must, "at, completed, from and until are those of the Source that publishes the document", "", "internal/publish.resourceHead internal/publish.renderChanges", onlyTheSource},
		{"14.8", Should, "an aggregator passes on a link only if it is true of its own copy", "", "translate.FromResource", onlyTheSource},
		{"A", Must, "at is on Resource Lists, Resource Dumps, their indexes, and Resource Dump Manifests", "rs-at", "internal/publish.resourceHead", ""},
		{"A", Must, "from is on Change Lists, Change Dumps, their indexes, and Change Dump Manifests", "rs-from", "internal/publish.renderChanges", ""},
		{"A", Should, "from is on entries of Change List Indexes, Change Dumps and their indexes", "rs-entry-from", "internal/publish.changeIndex", ""},
		{"A", Must, "completed and until stand only where at and from may", "rs-at rs-from rs-entry-times rs-completed", "internal/publish.Render", ""},
	}
}

func atomRequirements() []requirement {
	return []requirement{
		{"Implementation of modify and/or delete", Should, "providers keep track of deletions", "", "internal/eventlog.Log.Append", onlyTheSource},
		{"Logical feed", Must, "each entry is of exactly one metadata record", "4287-entry", "translate.FeedEncoder.Entry", ""},
		{"Atom Feed Documents", Must, "one or more Atom Feed Documents represent the logical feed", "4287-document pmh-chain", "internal/publish.PlanSet", ""},
		{"Atom Feed Documents", Must, "they conform to RFC 4287", "4287-feed 4287-entry 4287-id 4287-date 4287-link 4287-alternates 4287-base 4287-person 4287-category 4287-lang 4287-source 4287-text 4287-link-type 4287-self", "internal/publish.TestFeedSchema", "The rules are those of what a feed of metadata records uses. Elements that neither protocol nor bridge reads (icon, logo, extensions) are only counted."},
		{"Atom Feed Documents", Must, "they are an archived feed of RFC 5005", "5005-prev-archive 5005-paged 5005-archive 5005-current-link 5005-next-archive S11", "internal/publish.archive", ""},
		{"Timestamps", Must, "feed/updated is not earlier than any entry of the document", "S1", "atompmh.Writer.Entry", ""},
		{"Timestamps", Must, "prev-archive resolves to an Atom Feed Document", "pmh-chain", "atompmh.Gap", ""},
		{"Timestamps", Must, "feed/updated of that document is not later than any entry of the one that names it", "S2", "atompmh.Writer.Entry", ""},
		{"Active entries", Must, "each record of the current pool has exactly one active entry", "", "internal/publish.TestCompleteFeedHasEveryRecord", onlyTheSource},
		{"Active entries", Must, "there are no other active entries", "", "internal/publish.TestCompleteFeedHasEveryRecord", onlyTheSource},
		{"Active entries", Must, "atom:id of an active entry is the record's identifier", "4287-id", "translate.FeedEncoder.Entry", "That it is an absolute IRI is checked."},
		{"Active entries", Must, "atom:updated is when the record was last modified", "4287-date", "translate.FeedEncoder.Entry", onlyTheSource + " In a bridge's feed it is the time of change in the bridge's own pool."},
		{"Active entries", Must, "it is not earlier than any historical entry of the record", "", "internal/eventlog.Log.Append", "Of the entries of a record the latest is the active one: no document can break it."},
		{"Active entries", Should, "it is not the same as that of a historical entry", "pmh-stamp", "internal/eventlog.Log.Append", ""},
		{"Active entries", Must, "an active entry has no atom:content", "S10", "atompmh.Writer.Entry", ""},
		{"Active entries", Must, "it has an alternate link", "S10", "atompmh.Writer.Entry", ""},
		{"Active entries", Must, "the URI of an alternate link resolves to a representation of the record, and no alternate link to anything else", "pmh-resolves", "internal/server.TestLocsAnswerWhatTheListsState translate.ServedType", "That it is one of the record, only the Source knows."},
		{"Active entries", Must, "the type of an alternate link is the media type of the representation", "pmh-type pmh-resolves", "atompmh.Writer.Entry", ""},
		{"Deletion entries", Must, "a provider treats all deletions in the same way, with deletion entries or by removal from a complete feed", "S7", "internal/publish.planFeeds", ""},
		{"Deletion entries", Should, "a provider with deletion entries has no fh:complete", "S7", "atompmh.Writer.Entry", ""},
		{"Deletion entries", Must, "without deletion entries the subscription document has all active entries and fh:complete", "S8 S11", "internal/publish.completeFeed", onlyTheSource},
		{"Deletion entries", Must, "a deletion entry has the record's identifier and the time of the deletion", "4287-id 4287-date", "translate.FeedEncoder.Entry", ""},
		{"Deletion entries", Must, "its atom:updated is not earlier than any historical entry", "", "internal/eventlog.Log.Append", "Of the entries of a record the latest counts: no document can break it."},
		{"Deletion entries", Should, "it is not the same as that of a historical entry", "pmh-stamp", "internal/eventlog.Log.Append", ""},
		{"Deletion entries", Must, "it has no alternate link", "S10", "atompmh.Writer.Entry", ""},
		{"Deletion entries", Must, "it has an atom:content without src and without content", "S10", "atompmh.Writer.Entry", ""},
		{"Historical entries", Should, "each change has a historical entry", "", "internal/publish.archive", onlyTheSource + " A bridge keeps them in its archives."},
		{"Historical entries", Must, "a historical entry has the identifier, and the atom:updated that it had as active entry", "", "internal/publish.TestAnyStepsSameBytes", oneRun},
		{"Historical entries", Must, "it has no atom:content, and an alternate link", "S10", "atompmh.Writer.Entry", ""},
		{"Complete feeds", Should, "a document with all active entries, and none of deleted records, has fh:complete", "", "internal/publish.completeFeed", onlyTheSource + " A provider with deletion entries should not, and which of the two it is does not show."},
		{"Complete feeds", Must, "a document without all active entries, or with entries of deleted records, has no fh:complete", "S8 opensearch-results", "internal/publish.completeFeed", ""},
		{"Example 1", Must, "every document has prev-archive, but the oldest", "S11 pmh-chain", "internal/publish.archive", "Where a document has none it counts as the oldest."},
		{"Atom-RDC", Must, "the self link of an Atom-RDC document is the URI of the alternate link", "", "", "Atom-RDC is a format of records like any other: a bridge does not look into records."},
		{"Detecting entry type", Must, "entries are read as active, historical or deletion entries by their links and content", "S10", "atompmh.Kind", "No shall in the draft; this is how it says to read."},
		{"Detecting deleted metadata records", Must, "in a complete feed absence deletes, elsewhere deletion entries do", "S7", "atompmh.Document.Complete", "No shall in the draft; this is how it says to read."},
		{"Resolvability of URIs", Must, "403, 404 and 410 mean that an entry is no longer active; 401 and 5xx do not", "", "internal/harvest.Harvester", "No shall in the draft; this is how it says to read."},
	}
}

func sipRequirements() []requirement {
	return []requirement{
		{"Document formats", Must, "all elements are in one namespace, in the order of the document types", "sip-element sip-text sip-attribute sip-document", "sip.ReadMessage sip.AppendMessage sip.Schema", ""},
		{"ingest-properties", Must, "properties have a notification-style, synchronous or asynchronous", "sip-style sip-element", "sip.Properties", ""},
		{"ingest-properties", Must, "properties have one or more formats, each the URL of an XML schema", "sip-element sip-value sip-format", "internal/ingest.Server.GetProperties", ""},
		{"ingest-properties", Must, "a synchronous server answers every request with the ultimate disposition", "", "internal/ingest.TestLibraryOverHTTP internal/ingest.Server.Ingest", "It shows in an exchange, not in a message."},
		{"ingest-request", Must, "a request has one record, which is a single element of a format that the server accepts", "sip-record sip-element", "internal/ingest.Server.Ingest internal/delivery.Files.Check", ""},
		{"ingest-request", Must, "a submitter has a name and an email-address", "sip-element sip-email", "sip.Submitter", ""},
		{"ingest-disposition", Must, "a disposition repeats the source of the request to the extent present", "", "internal/ingest.TestNoticeEchoesTheRequest sip.Source", "It shows in an exchange, not in a message."},
		{"ingest-disposition", Must, "a disposition is accepted, provisionally accepted or rejected", "sip-element", "sip.Outcome", ""},
		{"ingest-disposition", Must, "an accepted disposition has an assigned-identifier", "sip-element sip-value", "internal/ingest.Server.Ingest", ""},
		{"ingest-disposition", Must, "a provisionally accepted one is empty", "sip-empty", "sip.AppendMessage", ""},
		{"Operations", Must, "all operations are stateless", "", "sip.Handler", "The draft means the protocol: each message has all that is needed."},
		{"Operations", Must, "an ingest server has get-properties and ingest", "", "sip.Handler internal/ingest.TestOperationsOfEachMode", "It shows in an exchange, not in a message."},
		{"Operations", Must, "after a provisional acceptance the ultimate disposition is sent to the notification recipient", "", "internal/delivery.Notifier internal/ingest.TestReview", "It shows in an exchange, not in a message."},
		{"Operations", Must, "a notification recipient has notify", "", "sip.Handler sip/mail.Answered", "It shows in an exchange, not in a message."},
		{"Operations", Must, "the disposition of a notify is not provisional", "", "sip.HTTPClient.Notify sip.TestHandlerFaults", "The same message is a legal answer to an ingest."},
		{"SOAP binding", Must, "documents are passed in document style", "sip-envelope sip-header", "sip.WSDL sip.TestHandlerZeep", ""},
		{"SOAP binding", Must, "URLs of notification recipients are of http or smtp", "sip-recipient", "internal/delivery.ParseRecipient", "As a recipient, and as an ingest server, a bridge takes https and mailto too."},
	}
}
